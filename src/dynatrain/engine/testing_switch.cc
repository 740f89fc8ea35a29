#include "dynatrain/engine/testing_switch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>

#include "dynatrain/base/hash.h"
#include "dynatrain/engine/storage.h"
#include "dynatrain/planner/brute_force.h"
#include "dynatrain/vps/element_oracle.h"
#include "dynatrain/vps/random_layouts.h"
#include "dynatrain/vps/shard_elements.h"

namespace dynatrain::engine::testing {
namespace {

using vps::ShardMap;
using vps::testing::MapOf;
using vps::testing::OracleState;
using vps::testing::State;

// What one rank's state takes now, each storage counted once.
ByteCount ResidentBytes(const StateBuffers& a, const StateBuffers& b) {
  std::set<Storage*> storages;
  for (const StateBuffers* state : {&a, &b}) {
    for (int i = 0; i < state->num_buffers(); ++i) storages.insert(state->storage(i).get());
  }
  ByteCount bytes = 0;
  for (const Storage* storage : storages) bytes += storage->ResidentBytes();
  return bytes;
}

// Looks at the memory whenever the transport is called.
class MeasuringTransport final : public transport::Transport {
 public:
  MeasuringTransport(std::unique_ptr<Transport> inner, std::function<void()> measure)
      : inner_(std::move(inner)), measure_(std::move(measure)) {}
  RankId rank() const override { return inner_->rank(); }
  const std::vector<RankId>& ranks() const override { return inner_->ranks(); }
  transport::Capabilities capabilities() const override { return inner_->capabilities(); }
  std::string name() const override { return inner_->name(); }
  Result<transport::OpId> Send(RankId to, transport::Tag tag, ConstByteSpan data) override {
    measure_();
    return inner_->Send(to, tag, data);
  }
  Result<transport::OpId> Receive(RankId from, transport::Tag tag, ByteSpan data) override {
    measure_();
    return inner_->Receive(from, tag, data);
  }
  Status Wait(transport::OpId op, Duration timeout) override {
    const Status status = inner_->Wait(op, timeout);
    measure_();
    return status;
  }
  void Abort() override { inner_->Abort(); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::function<void()> measure_;
};

// Everything of one rank; destroyed in this order: the transport before the memory it may still
// touch.
struct Rank {
  Program program;
  StateBuffers old_state;
  StateBuffers new_state;
  std::unique_ptr<Staging> staging;
  std::unique_ptr<transport::Transport> transport;
  ByteCount peak_bytes = 0;
  ExecutionProgress progress;

  void Measure() {
    const ProgramStats& stats = program.stats;
    peak_bytes = std::max(peak_bytes, ResidentBytes(old_state, new_state) + stats.staging_bytes +
                                          stats.bookkeeping_bytes + stats.transport_bytes +
                                          stats.heap_bytes);
  }
};

StateBuffers Load(const ShardMap& map, RankId rank, const State& state) {
  auto buffers = StateBuffers::Allocate(map, rank, Fill::kZero);
  DT_CHECK_MSG(buffers.ok(), buffers.status().ToString());
  if (!state.contains(rank)) return *std::move(buffers);
  const auto& bytes = state.at(rank);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const ByteSpan target = buffers->bytes(static_cast<vps::BufferIndex>(i));
    DT_CHECK(target.size() == bytes[i].size());
    if (!target.empty()) std::memcpy(target.data(), bytes[i].data(), target.size());
  }
  return *std::move(buffers);
}

std::vector<std::vector<std::byte>> Dump(const StateBuffers& state) {
  std::vector<std::vector<std::byte>> bytes;
  for (int i = 0; i < state.num_buffers(); ++i) {
    const ConstByteSpan buffer = state.bytes(i);
    bytes.emplace_back(buffer.begin(), buffer.end());
  }
  return bytes;
}

Result<ExecutionReport> RunRank(Rank* rank, const SwitchOptions& options) {
  if (rank->program.mode == Mode::kStream) {
    rank->transport = std::make_unique<MeasuringTransport>(std::move(rank->transport),
                                                           [rank] { rank->Measure(); });
  }
  auto report = Execute(rank->program, rank->old_state, &rank->new_state, *rank->transport,
                        rank->staging.get(), options.verify, MonotonicClock(), options.timeout,
                        &rank->progress);
  if (!report.ok()) rank->transport.reset();
  return report;
}

Rank Prepare(const ShardMap& from, const State& state, const ShardMap& to,
             const SwitchOptions& options, Program program, transport::LocalHub* hub) {
  Rank rank;
  rank.program = std::move(program);
  if (options.change) options.change(&rank.program);
  const RankId id = rank.program.rank;
  rank.old_state = Load(from, id, state);
  const auto make =
      options.compile.mode == Mode::kStream ? StateBuffers::Reserve : StateBuffers::AllocateReusing;
  auto fresh = make(to, id, Fill::kNan, rank.old_state, rank.program.alias);
  DT_CHECK_MSG(fresh.ok(), fresh.status().ToString());
  rank.new_state = *std::move(fresh);
  auto staging = Staging::Make(rank.program, options.verify);
  DT_CHECK_MSG(staging.ok(), staging.status().ToString());
  rank.staging = *std::move(staging);
  rank.transport = hub->Connect(id);
  if (const auto it = options.faults.find(id); it != options.faults.end()) {
    rank.transport =
        std::make_unique<transport::FaultyTransport>(std::move(rank.transport), it->second);
  }
  return rank;
}

}  // namespace

std::vector<Program> CompileAll(const ShardMap& from, const ShardMap& to,
                                const planner::Topology& topology, const std::vector<RankId>& ranks,
                                const CompileOptions& options, const planner::PlanOptions& plan) {
  std::vector<Program> programs;
  for (const RankId rank : ranks) {
    const auto route = planner::PlanRoute(from, to, topology, rank, plan);
    EXPECT_TRUE(route.ok()) << route.status().ToString();
    auto program = Compile(*route, from, to, topology, ranks, options);
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    programs.push_back(*std::move(program));
  }
  return programs;
}

bool SwitchResult::ok() const {
  return ties.ok() && std::all_of(status.begin(), status.end(),
                                  [](const auto& entry) { return entry.second.ok(); });
}

std::string SwitchResult::ToString() const {
  std::string text;
  for (const auto& [rank, s] : status) {
    if (!s.ok()) text += fmt::format("rank {}: {}\n", rank, s.ToString());
  }
  if (!ties.ok()) text += ties.ToString();
  return text.empty() ? "ok" : text;
}

SwitchResult RunSwitch(const ShardMap& from, const State& state, const ShardMap& to,
                       const SwitchOptions& options) {
  const std::vector<RankId> ids = options.ranks.empty() ? UnionOfRanks(from, to) : options.ranks;
  transport::LocalHub hub(ids, options.transport);
  std::vector<Rank> ranks;
  for (Program& program :
       CompileAll(from, to, options.topology, ids, options.compile, options.plan)) {
    ranks.push_back(Prepare(from, state, to, options, std::move(program), &hub));
  }
  std::vector<Result<ExecutionReport>> results(ranks.size(), ExecutionReport{});
  TieSums ties;
  if (options.compile.mode == Mode::kStream && options.verify != Verify::kOff) {
    for (const Rank& rank : ranks) AddTies(SumTies(rank.program, rank.old_state), &ties);
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = RunRank(&ranks[i], options); });
  }
  for (std::thread& thread : threads) thread.join();
  SwitchResult result;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankId id = ranks[i].program.rank;
    result.status[id] = results[i].status();
    if (results[i].ok()) AddTies(results[i]->ties, &ties);
    result.stats[id] = ranks[i].program.stats;
    result.peak_bytes[id] = ranks[i].peak_bytes;
    result.progress[id] = ranks[i].progress;
    for (int b = 0; b < ranks[i].old_state.num_buffers(); ++b) {
      result.resident_old_bytes[id].push_back(ranks[i].old_state.storage(b)->ResidentBytes());
    }
    if (ranks[i].old_state.num_buffers() > 0 || state.contains(id))
      result.old_state[id] = Dump(ranks[i].old_state);
    const auto members = to.Ranks();
    if (std::count(members.begin(), members.end(), id) > 0)
      result.new_state[id] = Dump(ranks[i].new_state);
  }
  if (result.ok()) result.ties = CheckTies(ties);
  return result;
}

RandomSwitch DrawSwitch(uint64_t seed, Random* random) {
  RandomSwitch c;
  do {
    c.catalog = vps::testing::RandomCatalog(random, 0);
    c.from = MapOf(c.catalog, vps::testing::RandomLayout(random, *c.catalog, 0));
    c.to = MapOf(c.catalog, vps::testing::RandomLayout(random, *c.catalog, 0));
    c.options.ranks = UnionOfRanks(*c.from, *c.to);
  } while (c.options.ranks.size() > 17);
  if (!random->OneIn(3))
    c.options.topology.ranks_per_node = static_cast<int32_t>(random->Between(1, 6));
  c.options.transport = {.rendezvous = !random->OneIn(4),
                         .max_outstanding = static_cast<int32_t>(random->Between(0, 3)),
                         .max_message = random->OneIn(3) ? random->Between(1, 60) : INT64_MAX,
                         .timing_seed = random->OneIn(4) ? 0 : seed};
  return c;
}

State Numbered(const ShardMap& map) {
  State state;
  for (const RankId rank : map.Ranks()) {
    for (const vps::Buffer& buffer : map.BuffersOf(rank)) {
      DT_CHECK(buffer.dtype == vps::DType::kF32);
      state[rank].emplace_back(static_cast<size_t>(buffer.bytes()));
    }
    for (const vps::Shard& shard : map.ShardsOf(rank)) {
      std::byte* bytes = state[rank][static_cast<size_t>(shard.buffer)].data();
      vps::ForEachElement(
          map.catalog().shape_of(shard.tensor), shard, [&](int64_t index, int64_t at) {
            const auto value = static_cast<uint32_t>(
                Mix64(static_cast<uint64_t>(shard.tensor) << 40 | static_cast<uint64_t>(index)) |
                1U);
            std::memcpy(bytes + at * 4, &value, 4);
          });
    }
  }
  return state;
}

State ExpectSurvives(const std::shared_ptr<const vps::StateCatalog>& catalog,
                     const std::vector<std::string>& specs,
                     const vps::testing::ValueFunction& value, const SwitchOptions& options) {
  auto from = MapOf(catalog, specs[0]);
  State state = OracleState(*from, value);
  for (size_t i = 1; i < specs.size(); ++i) {
    SCOPED_TRACE(fmt::format("{} -> {}", specs[i - 1], specs[i]));
    const auto to = MapOf(catalog, specs[i]);
    SwitchResult result = RunSwitch(*from, state, *to, options);
    EXPECT_TRUE(result.ok()) << result.ToString();
    if (!result.ok()) return {};
    EXPECT_EQ(result.old_state, state);
    EXPECT_EQ(result.new_state, OracleState(*to, value));
    ByteCount moved = 0;
    for (const auto& [rank, stats] : result.stats) moved += stats.received_bytes;
    EXPECT_EQ(moved, planner::BruteForceMovedBytes(*from, *to));
    state = std::move(result.new_state);
    from = to;
  }
  return state;
}

}  // namespace dynatrain::engine::testing
