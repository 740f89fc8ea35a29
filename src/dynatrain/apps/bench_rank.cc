#include "dynatrain/apps/bench_rank.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "dynatrain/base/hash.h"
#include "dynatrain/base/process_memory.h"
#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/memory_plan.h"
#include "dynatrain/planner/route.h"
#include "dynatrain/vps/digest.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;
using transport::OpId;
using transport::Tag;

constexpr Duration kWaitTimeout = std::chrono::seconds(120);
// Above all tags of programs.
constexpr Tag kMeetTag = transport::kTagLimit - 0x1000;
constexpr Tag kPingTag = transport::kTagLimit - 0x2000;
constexpr int kPings = 200;
constexpr uint64_t kDigestKey = 0xb3c4;

double Now() { return ToSeconds(MonotonicClock().Now()); }

// Processor time of all threads of the process, in seconds.
double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// State whose elements tell which they are, equal on all replicas.
void FillState(const vps::ShardMap& map, RankId rank, engine::StateBuffers* state) {
  for (const vps::Shard& shard : map.ShardsOf(rank)) {
    const vps::Box whole = vps::Box::Whole(map.catalog().shape_of(shard.tensor));
    const ByteSpan buffer = state->bytes(shard.buffer);
    const auto elem = static_cast<int64_t>(vps::ElemBytes(state->buffer(shard.buffer).dtype));
    const engine::Region region{shard.buffer, shard.offset, shard.box.shape(), shard.strides,
                                static_cast<int32_t>(elem)};
    vps::Coords at = shard.box.lo();
    const int last = at.dims() - 1;
    std::vector<std::byte> run(static_cast<size_t>(region.bytes()));
    auto* out = run.data();
    while (out < run.data() + run.size()) {
      const int64_t row = last < 0 ? 1 : shard.box.hi()[last] - shard.box.lo()[last];
      auto value = static_cast<uint64_t>(vps::FlatIndex(whole, at)) +
                   Mix64(static_cast<uint64_t>(shard.tensor));
      for (int64_t i = 0; i < row; ++i, ++value, out += elem) {
        const uint64_t bits = value * 0x9e3779b97f4a7c15ULL >> 24;
        std::memcpy(out, &bits, static_cast<size_t>(elem));
      }
      for (int axis = last - 1; axis >= 0; --axis) {
        if (++at[axis] < shard.box.hi()[axis]) break;
        at[axis] = shard.box.lo()[axis];
      }
    }
    engine::Unpack(run, region, buffer);
  }
}

json DigestJson(const vps::ShardMap& map, RankId rank, const engine::StateBuffers& state) {
  const vps::StateDigest digest = vps::DigestOfRank(
      map, rank, [&state](vps::BufferIndex index) { return state.bytes(index); }, kDigestKey);
  return json::array({digest.digest, digest.replica});
}

class BenchRank {
 public:
  BenchRank(const BenchConfig& config, RankId rank, const Tell& tell)
      : config_(config), rank_(rank), tell_(tell) {}

  Status Run(const ConnectWire& connect) {
    DT_RETURN_IF_ERROR(Prepare());
    if (!std::ranges::binary_search(ranks_, rank_)) return Status::Ok();
    DT_ASSIGN_OR_RETURN(wire_, connect(ranks_, engine::PeersOf(program_)));
    MakeRawBuffers();
    DT_RETURN_IF_ERROR(MakeOldState());
    DT_RETURN_IF_ERROR(MeasureRates());
    for (int32_t pass = 0; pass <= config_.repeat; ++pass) {
      DT_RETURN_IF_ERROR(MeasureLimit(pass));
      DT_RETURN_IF_ERROR(MeasureRun(pass));
    }
    return Meet();
  }

 private:
  Status Prepare();
  Status Compile();
  void MakeRawBuffers();
  Status MakeOldState();
  Status Meet();
  Status MeasureRates();
  Result<double> MeasurePings(double* post_seconds);
  Status MeasureLimit(int32_t pass);
  Status MeasureRun(int32_t pass);
  Result<engine::StateBuffers> NewState() const;

  const BenchConfig& config_;
  const RankId rank_;
  const Tell& tell_;
  BenchSetup setup_;
  std::shared_ptr<const vps::LayoutShardMap> from_, to_;
  std::vector<RankId> ranks_;
  engine::Program program_;
  BenchWire wire_;
  PeerBuffers raw_out_, raw_in_;
  engine::StateBuffers old_state_;
};

Status BenchRank::Prepare() {
  DT_ASSIGN_OR_RETURN(setup_, BenchSetup::Make(config_));
  const planner::PlanRequest& request = setup_.request;
  DT_ASSIGN_OR_RETURN(from_, vps::LayoutShardMap::Make(request.catalog, request.from));
  DT_ASSIGN_OR_RETURN(to_, vps::LayoutShardMap::Make(request.catalog, request.to));
  std::vector<RankId> old_ranks = from_->Ranks(), new_ranks = to_->Ranks();
  std::ranges::sort(old_ranks);
  std::ranges::sort(new_ranks);
  std::ranges::set_union(old_ranks, new_ranks, std::back_inserter(ranks_));
  if (!std::ranges::binary_search(ranks_, rank_)) return Status::Ok();
  return Compile();
}

Status BenchRank::Compile() {
  const planner::PlanRequest& request = setup_.request;
  DT_ASSIGN_OR_RETURN(const planner::Route route,
                      planner::PlanRoute(*from_, *to_, request.topology, rank_, request.options));
  DT_ASSIGN_OR_RETURN(
      program_, engine::Compile(route, *from_, *to_, request.topology, ranks_, setup_.compile));
  return Status::Ok();
}

void BenchRank::MakeRawBuffers() {
  std::map<RankId, ByteCount> out, in;
  for (const engine::Phase& phase : program_.phases) {
    for (const engine::Message& message : phase.sends) out[message.peer] += message.bytes;
    for (const engine::Message& message : phase.receives) in[message.peer] += message.bytes;
  }
  for (const auto& [peer, bytes] : out)
    raw_out_[peer] = std::vector<std::byte>(static_cast<size_t>(bytes), std::byte{7});
  for (const auto& [peer, bytes] : in) raw_in_[peer].resize(static_cast<size_t>(bytes));
}

Status BenchRank::MakeOldState() {
  DT_ASSIGN_OR_RETURN(old_state_,
                      engine::StateBuffers::Allocate(*from_, rank_, engine::Fill::kZero));
  FillState(*from_, rank_, &old_state_);
  return Status::Ok();
}

// Returns once all ranks have called it: after round k everybody has heard of 2^k others.
Status BenchRank::Meet() {
  const auto count = ranks_.size();
  const auto self = static_cast<size_t>(std::ranges::lower_bound(ranks_, rank_) - ranks_.begin());
  transport::Transport& transport = *wire_.transport;
  Tag tag = kMeetTag;
  for (size_t distance = 1; distance < count; distance *= 2, ++tag) {
    const std::byte out{1};
    std::byte in{};
    DT_ASSIGN_OR_RETURN(
        const OpId receive,
        transport.Receive(ranks_[(self + count - distance) % count], tag, {&in, 1}));
    DT_ASSIGN_OR_RETURN(const OpId send,
                        transport.Send(ranks_[(self + distance) % count], tag, {&out, 1}));
    DT_RETURN_IF_ERROR(transport.Wait(receive, kWaitTimeout));
    DT_RETURN_IF_ERROR(transport.Wait(send, kWaitTimeout));
  }
  return Status::Ok();
}

// Seconds of one small message around the ring of ranks, posts included; and of one post.
Result<double> BenchRank::MeasurePings(double* post_seconds) {
  const auto count = ranks_.size();
  if (count < 2) return 0.0;
  const auto self = static_cast<size_t>(std::ranges::lower_bound(ranks_, rank_) - ranks_.begin());
  transport::Transport& transport = *wire_.transport;
  const std::vector<std::byte> out(8);
  std::vector<std::byte> in(8);
  const double began = Now();
  double posting = 0;
  for (int i = 0; i < kPings; ++i) {
    const double post_began = Now();
    DT_ASSIGN_OR_RETURN(const OpId receive,
                        transport.Receive(ranks_[(self + count - 1) % count], kPingTag, in));
    DT_ASSIGN_OR_RETURN(const OpId send, transport.Send(ranks_[(self + 1) % count], kPingTag, out));
    posting += Now() - post_began;
    DT_RETURN_IF_ERROR(transport.Wait(receive, kWaitTimeout));
    DT_RETURN_IF_ERROR(transport.Wait(send, kWaitTimeout));
  }
  *post_seconds = posting / (2 * kPings);
  return (Now() - began) / kPings;
}

// The rank packs and hashes what it will send, while all others do.
Status BenchRank::MeasureRates() {
  constexpr ByteCount kEnough = ByteCount{256} << 20;
  std::vector<engine::Region> regions;
  ByteCount bytes = 0;
  for (const engine::Phase& phase : program_.phases) {
    for (const engine::Message& message : phase.sends) {
      for (const engine::Fragment& fragment : message.fragments) {
        if (bytes < kEnough) regions.push_back(fragment.region);
        if (bytes < kEnough) bytes += fragment.region.bytes();
      }
    }
  }
  ByteCount largest = 0;
  for (const engine::Region& region : regions) largest = std::max(largest, region.bytes());
  std::vector<std::byte> run(static_cast<size_t>(largest));
  const engine::StateBuffers& state = old_state_;
  DT_RETURN_IF_ERROR(Meet());
  const double began = Now();
  for (const engine::Region& region : regions)
    engine::Pack(state.bytes(region.buffer), region,
                 ByteSpan(run).first(static_cast<size_t>(region.bytes())));
  const double packed = Now();
  for (const engine::Region& region : regions)
    static_cast<void>(engine::HashRegion(state.bytes(region.buffer), region));
  const double hashed = Now();
  DT_RETURN_IF_ERROR(Meet());
  double message_s = 0;
  DT_ASSIGN_OR_RETURN(const double ping, MeasurePings(&message_s));
  tell_("rates", {{"bytes", bytes},
                  {"copy_s", packed - began},
                  {"check_s", hashed - packed},
                  {"message_s", message_s},
                  {"latency_s", std::max(0.0, ping - 2 * message_s)}});
  return Status::Ok();
}

Status BenchRank::MeasureLimit(int32_t pass) {
  DT_RETURN_IF_ERROR(Meet());
  const double cpu_began = CpuSeconds();
  const double began = Now();
  DT_RETURN_IF_ERROR(wire_.exchange_raw(raw_out_, &raw_in_));
  const double ended = Now();
  const double cpu = CpuSeconds() - cpu_began;
  DT_RETURN_IF_ERROR(Meet());  // what comes next is not to disturb those who still exchange
  tell_("limit", {{"pass", pass}, {"begin", began}, {"end", ended}, {"cpu", cpu}});
  return Status::Ok();
}

Result<engine::StateBuffers> BenchRank::NewState() const {
  return setup_.compile.mode == engine::Mode::kStream
             ? engine::StateBuffers::Reserve(*to_, rank_, engine::Fill::kZero, old_state_,
                                             program_.alias)
             : engine::StateBuffers::AllocateReusing(*to_, rank_, engine::Fill::kZero, old_state_,
                                                     program_.alias);
}

Status BenchRank::MeasureRun(int32_t pass) {
  const bool streams = setup_.compile.mode == engine::Mode::kStream;
  if (streams && pass > 0) DT_RETURN_IF_ERROR(MakeOldState());
  json digest;
  if (pass == 0) digest["before"] = DigestJson(*from_, rank_, old_state_);
  // What a switch takes is the program too. What the process has freed must not hide it.
  program_ = {};
  ::malloc_trim(0);
  DT_ASSIGN_OR_RETURN(const ProcessMemory base, ReadProcessMemory());
  DT_RETURN_IF_ERROR(Compile());
  DT_ASSIGN_OR_RETURN(engine::StateBuffers new_state, NewState());
  DT_ASSIGN_OR_RETURN(const auto staging, engine::Staging::Make(program_, setup_.verify));
  ::malloc_trim(0);
  DT_RETURN_IF_ERROR(ResetPeakMemory());
  DT_ASSIGN_OR_RETURN(const ProcessMemory ready, ReadProcessMemory());
  DT_RETURN_IF_ERROR(Meet());
  const double cpu_began = CpuSeconds();
  const double began = Now();
  DT_ASSIGN_OR_RETURN(
      const engine::ExecutionReport report,
      engine::Execute(program_, old_state_, &new_state, *wire_.transport, staging.get(),
                      setup_.verify, MonotonicClock(), kWaitTimeout));
  const double ended = Now();
  const double cpu = CpuSeconds() - cpu_began;
  DT_RETURN_IF_ERROR(Meet());
  json event = {{"pass", pass},
                {"begin", began},
                {"end", ended},
                {"pack", ToSeconds(report.pack)},
                {"wire", ToSeconds(report.wire)},
                {"unpack", ToSeconds(report.unpack)},
                {"copy", ToSeconds(report.copy)},
                {"check", ToSeconds(report.check)},
                {"memory", ToSeconds(report.memory)},
                {"cpu", cpu}};
  DT_ASSIGN_OR_RETURN(const ProcessMemory after, ReadProcessMemory());
  if (wire_.own_process) {
    const ByteCount old_bytes = engine::MemoryBytes(program_.old_buffers);
    // Code that was read in by then is no memory of the switch.
    event["measured_peak_extra_bytes"] =
        (after.peak - ready.file) - (base.resident - base.file) + old_bytes -
        std::max(old_bytes, engine::MemoryBytes(program_.new_buffers));
  }
  tell_("run", std::move(event));
  if (pass > 0) return Status::Ok();
  digest["after"] = DigestJson(*to_, rank_, new_state);
  tell_("digest", std::move(digest));
  return Status::Ok();
}

}  // namespace

Status RunBenchRank(const BenchConfig& config, RankId rank, const ConnectWire& connect,
                    const Tell& tell) {
  return BenchRank(config, rank, tell).Run(connect);
}

}  // namespace dynatrain::apps
