#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "dynatrain/engine/checker.h"
#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/planner/brute_force.h"
#include "dynatrain/vps/digest.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::RunSwitch;
using testing::SwitchOptions;
using testing::SwitchResult;
using transport::Fault;
using vps::LayoutShardMap;
using vps::ShardMap;
using vps::StateCatalog;
using vps::testing::DistinctValue;
using vps::testing::MakeState;
using vps::testing::State;

std::shared_ptr<const LayoutShardMap> MapOf(std::shared_ptr<const StateCatalog> catalog,
                                            std::string_view spec) {
  const auto layout = vps::ParseLayout(spec);
  EXPECT_TRUE(layout.ok()) << layout.status().ToString();
  auto map = LayoutShardMap::Make(std::move(catalog), *layout);
  EXPECT_TRUE(map.ok()) << map.status().ToString();
  return *map;
}

vps::Parameter ParameterOf(std::string name, vps::Coords shape, vps::Split split, int32_t layer) {
  vps::Parameter p;
  p.name = std::move(name);
  p.shape = shape;
  p.split = std::move(split);
  p.homes = {vps::Home::Layer(layer)};
  p.kinds = vps::Fp32AdamKinds();
  return p;
}

// Layers of a column-split, a row-split and a replicated parameter.
std::shared_ptr<const StateCatalog> SmallModel(int32_t layers) {
  auto catalog = std::make_shared<StateCatalog>();
  for (int32_t l = 0; l < layers; ++l) {
    EXPECT_TRUE(
        catalog->Add(ParameterOf(fmt::format("l{}.up", l), {12, 10}, vps::Split::Balanced(0), l))
            .ok());
    EXPECT_TRUE(
        catalog->Add(ParameterOf(fmt::format("l{}.down", l), {10, 12}, vps::Split::Balanced(1), l))
            .ok());
    EXPECT_TRUE(
        catalog->Add(ParameterOf(fmt::format("l{}.norm", l), {11}, vps::Split::None(), l)).ok());
  }
  return catalog;
}

vps::StateDigest DigestOf(const ShardMap& map, const State& state) {
  vps::StateDigest total;
  for (const RankId rank : map.Ranks()) {
    const auto& buffers = state.at(rank);
    total = Combine(total, vps::DigestOfRank(
                               map, rank,
                               [&](vps::BufferIndex i) {
                                 return ConstByteSpan(buffers[static_cast<size_t>(i)]);
                               },
                               /*key=*/17));
  }
  return total;
}

struct RandomCase {
  std::shared_ptr<const StateCatalog> catalog;
  std::shared_ptr<const ShardMap> from, to;
  SwitchOptions options;
};

// At most 17 ranks, and sometimes ranks in `options.ranks` that hold nothing.
RandomCase MakeCase(uint64_t seed) {
  Random random(seed);
  RandomCase c;
  do {
    c.catalog = vps::testing::RandomCatalog(&random, 0);
    c.from = *LayoutShardMap::Make(c.catalog, vps::testing::RandomLayout(&random, *c.catalog, 0));
    c.to = *LayoutShardMap::Make(c.catalog, vps::testing::RandomLayout(&random, *c.catalog, 0));
    c.options.ranks = testing::UnionOfRanks(*c.from, *c.to);
  } while (c.options.ranks.size() > 17);
  if (random.OneIn(4)) c.options.ranks.push_back(c.options.ranks.back() + 3);
  if (!random.OneIn(3))
    c.options.topology.ranks_per_node = static_cast<int32_t>(random.Between(1, 6));
  c.options.transport = {.rendezvous = !random.OneIn(4),
                         .max_outstanding = static_cast<int32_t>(random.Between(0, 3)),
                         .max_message = random.OneIn(3) ? random.Between(1, 40) : INT64_MAX,
                         .timing_seed = random.OneIn(4) ? 0 : seed};
  const auto window = static_cast<int32_t>(random.Between(1, 5));
  c.options.change = [window](Program* program) { program->window = window; };
  return c;
}

TEST(Execute, RandomSwitchesOverAnUnkindTransportAreExact) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomCase c = MakeCase(seed);
    const State before = MakeState(*c.from, DistinctValue);
    const SwitchResult result = RunSwitch(*c.from, before, *c.to, c.options);
    ASSERT_TRUE(result.ok()) << result.ToString();
    EXPECT_EQ(result.new_state, MakeState(*c.to, DistinctValue));
    EXPECT_EQ(DigestOf(*c.to, result.new_state), DigestOf(*c.from, before));
    EXPECT_EQ(DigestOf(*c.to, result.new_state).replica, 0U);
    for (const auto& [rank, buffers] : before) EXPECT_EQ(result.old_state.at(rank), buffers);
    ByteCount moved = 0;
    for (const auto& [rank, stats] : result.stats) moved += stats.received_bytes;
    EXPECT_EQ(moved, planner::BruteForceMovedBytes(*c.from, *c.to));
    if (HasFailure()) return;
  }
}

TEST(Compile, RandomProgramsFitTogetherAndCannotDeadlock) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomCase c = MakeCase(seed);
    auto programs = testing::CompileAll(*c.from, *c.to, c.options.topology, c.options.ranks);
    for (Program& program : programs) c.options.change(&program);
    for (const int32_t outstanding : {1, 2, 100}) {
      EXPECT_EQ(CheckPrograms(programs, outstanding).ToString(), "ok");
    }
    for (const Program& program : programs) {
      EXPECT_EQ(program.stats.kept_bytes + program.stats.received_bytes, [&] {
        ByteCount bytes = 0;
        for (const vps::Shard& s : program.new_shards) {
          bytes += s.box.elems() *
                   vps::ElemBytes(program.new_buffers[static_cast<size_t>(s.buffer)].dtype);
        }
        return bytes;
      }());
    }
    if (HasFailure()) return;
  }
}

TEST(Compile, TheCheckerSeesWhatDoesNotFit) {
  const auto catalog = SmallModel(2);
  const auto from = MapOf(catalog, "tp=4,dp=1");
  const auto to = MapOf(catalog, "dp=3,zero=1");
  const std::vector<RankId> ranks = {0, 1, 2, 3};
  const auto programs = testing::CompileAll(*from, *to, {}, ranks);
  ASSERT_EQ(CheckPrograms(programs, 1).ToString(), "ok");
  {
    auto lost = programs;
    lost[0].phases[0].receives.pop_back();
    EXPECT_FALSE(CheckPrograms(lost, 1).ok());
  }
  {
    auto other = programs;
    other[1].inputs_fingerprint ^= 1;
    EXPECT_FALSE(CheckPrograms(other, 1).ok());
  }
  {
    // Everybody first waits for the neighbour's first message: a ring.
    auto ring = programs;
    for (Program& program : ring) {
      program.window = 1;
      auto& receives = program.phases[0].receives;
      std::reverse(receives.begin(), receives.end());
      for (Message& message : receives) message.round = 3 - message.round;
    }
    EXPECT_FALSE(CheckPrograms(ring, 1).ok());
  }
}

TEST(Compile, KeptBuffersAreTakenOverWithoutACopy) {
  const auto catalog = SmallModel(4);
  const auto from = MapOf(catalog, "tp=2,pp=2,dp=1");
  const auto to = MapOf(catalog, "tp=2,pp=1,dp=1");
  const State before = MakeState(*from, DistinctValue);
  const SwitchResult result = RunSwitch(*from, before, *to, {});
  ASSERT_TRUE(result.ok()) << result.ToString();
  EXPECT_EQ(result.new_state, MakeState(*to, DistinctValue));
  for (const RankId rank : {0, 1}) {
    const ProgramStats& stats = result.stats.at(rank);
    EXPECT_EQ(stats.aliased_bytes, stats.kept_bytes);
    EXPECT_EQ(stats.new_state_bytes, stats.received_bytes);
    EXPECT_EQ(stats.kept_bytes, 2 * 3 * 4 * (60 + 60 + 11));
  }
  // Another order of parameters in the buffer is no alias.
  const auto reversed = MapOf(catalog, "tp=2,pp=2,dp=1,zero_order=reverse-contiguous");
  const SwitchResult copied = RunSwitch(*from, before, *reversed, {});
  ASSERT_TRUE(copied.ok()) << copied.ToString();
  EXPECT_EQ(copied.new_state, MakeState(*reversed, DistinctValue));
  EXPECT_EQ(copied.stats.at(0).aliased_bytes, 0);
  EXPECT_GT(copied.stats.at(0).kept_bytes, 0);
  EXPECT_EQ(copied.stats.at(0).received_bytes, 0);
}

TEST(Compile, PeersAndFingerprints) {
  const auto catalog = SmallModel(2);
  const auto from = MapOf(catalog, "tp=2,dp=1");
  const auto to = MapOf(catalog, "tp=1,dp=2,ranks=1+3");
  const auto programs = testing::CompileAll(*from, *to, {}, {0, 1, 3});
  EXPECT_EQ(PeersOf(programs[0]), (std::vector<RankId>{1, 3}));
  EXPECT_EQ(PeersOf(programs[1]), (std::vector<RankId>{0, 3}));
  EXPECT_EQ(PeersOf(programs[2]), (std::vector<RankId>{0, 1}));
  EXPECT_NE(programs[0].inputs_fingerprint,
            testing::CompileAll(*from, *to, {}, {0, 1, 2, 3})[0].inputs_fingerprint);
  EXPECT_NE(programs[0].inputs_fingerprint,
            testing::CompileAll(*from, *from, {}, {0, 1, 3})[0].inputs_fingerprint);
  for (const Program& program : programs) {
    for (const Phase& phase : program.phases) {
      for (const Message& message : phase.sends) EXPECT_LT(message.tag, transport::Tag{1} << 31);
    }
  }
}

// A rank that is not among those who take part is an error, never a wrong peer.
TEST(Compile, RefusesRanksThatDoNotTakePart) {
  const auto catalog = SmallModel(1);
  const auto from = MapOf(catalog, "tp=2,dp=1");
  const auto to = MapOf(catalog, "tp=1,dp=1,ranks=3");
  const auto route = planner::PlanRoute(*from, *to, {}, 3);
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(Compile(*route, *from, *to, {}, {0, 3}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Compile(*route, *from, *to, {}, {0, 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Compile(*route, *from, *to, {}, {3, 1, 0}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(StateBuffers, FillsEveryShardWithNanAndLeavesPaddingZero) {
  const auto catalog = SmallModel(1);
  const auto map = MapOf(catalog, "dp=3,zero=1,zero_order=forward-contiguous-end:64-start:8");
  for (const RankId rank : map->Ranks()) {
    const auto state = StateBuffers::Allocate(*map, rank, Fill::kNan);
    ASSERT_TRUE(state.ok());
    const State want = MakeState(*map, [](const vps::testing::Element&) { return ~uint64_t{0}; });
    ByteCount total = 0;
    for (int i = 0; i < state->num_buffers(); ++i) {
      const ConstByteSpan bytes = std::as_const(*state).bytes(i);
      EXPECT_TRUE(std::ranges::equal(bytes, want.at(rank)[static_cast<size_t>(i)]));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 4096, 0U);
      total += static_cast<ByteCount>(bytes.size());
    }
    EXPECT_EQ(state->total_bytes(), total);
    EXPECT_EQ(state->fresh_bytes(), total);
  }
}

TEST(StateBuffers, TooMuchMemoryIsAnError) {
  auto catalog = std::make_shared<StateCatalog>();
  ASSERT_TRUE(catalog->Add(ParameterOf("huge", {int64_t{1} << 44}, vps::Split::None(), 0)).ok());
  const auto state = StateBuffers::Allocate(*MapOf(catalog, "dp=1"), 0, Fill::kZero);
  EXPECT_EQ(state.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(state.status().message(), HasSubstr(std::to_string(int64_t{4} << 44)));
}

TEST(Execute, RefusesStateOfAnotherLayout) {
  const auto catalog = SmallModel(1);
  const auto from = MapOf(catalog, "dp=2");
  const auto to = MapOf(catalog, "dp=1,ranks=2");
  auto program = testing::CompileAll(*from, *to, {}, {0, 1, 2})[2];
  transport::LocalHub hub({0, 1, 2});
  const auto transport = hub.Connect(2);
  auto old_state = StateBuffers::Allocate(*from, 0, Fill::kZero);
  auto new_state = StateBuffers::Allocate(*to, 2, Fill::kZero);
  auto staging = Staging::Make(program, Verify::kMoved);
  const auto report = Execute(program, *old_state, &*new_state, *transport, staging->get(),
                              Verify::kMoved, MonotonicClock(), 1s);
  EXPECT_EQ(report.status().code(), StatusCode::kInvalidArgument);
}

// ---- Faults: each is either harmless, and then the state is exact, or an error; never a wrong
// state that counts as right.

struct FaultCase {
  Fault::Kind kind;
  bool always_an_error;
};

class Faults : public ::testing::TestWithParam<FaultCase> {};

TEST_P(Faults, AreCaughtAndLeaveTheOldStateAlone) {
  const auto catalog = SmallModel(3);
  const auto from = MapOf(catalog, "tp=2,pp=1,dp=2");
  const auto to = MapOf(catalog, "tp=1,pp=3,dp=1,zero=1");
  const State before = MakeState(*from, DistinctValue);
  const State after = MakeState(*to, DistinctValue);
  int caught = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    SwitchOptions options;
    options.timeout = 300ms;
    options.transport = {.rendezvous = false, .max_message = seed % 3 == 0 ? INT64_MAX : 64};
    const auto sender = static_cast<RankId>(seed % 4);
    options.faults[sender] = {{GetParam().kind, static_cast<int64_t>(seed / 4), seed, 1ms}};
    const SwitchResult result = RunSwitch(*from, before, *to, options);
    EXPECT_EQ(result.old_state, before);
    if (result.ok()) {
      EXPECT_EQ(result.new_state, after);
      EXPECT_FALSE(GetParam().always_an_error);
    } else {
      ++caught;
    }
  }
  EXPECT_TRUE(caught > 0 || GetParam().kind == Fault::Kind::kDelay);
}

INSTANTIATE_TEST_SUITE_P(All, Faults,
                         ::testing::Values(FaultCase{Fault::Kind::kFlipBit, true},
                                           FaultCase{Fault::Kind::kDrop, true},
                                           FaultCase{Fault::Kind::kDuplicate, false},
                                           FaultCase{Fault::Kind::kTruncate, true},
                                           FaultCase{Fault::Kind::kReorder, false},
                                           FaultCase{Fault::Kind::kDelay, false},
                                           FaultCase{Fault::Kind::kFail, true},
                                           FaultCase{Fault::Kind::kDie, true}));

TEST(Execute, AWrongUnpackOffsetIsCaughtByTheCheckOfWhatMoved) {
  const auto catalog = SmallModel(2);
  const auto from = MapOf(catalog, "tp=2,dp=1");
  const auto to = MapOf(catalog, "tp=1,dp=1");
  const State before = MakeState(*from, DistinctValue);
  SwitchOptions options;
  options.timeout = 2s;
  options.change = [](Program* program) {
    if (program->rank == 0) program->phases[0].receives[0].fragments[1].region.offset -= 1;
  };
  const SwitchResult result = RunSwitch(*from, before, *to, options);
  EXPECT_EQ(result.status.at(0).code(), StatusCode::kDataLoss) << result.ToString();
  EXPECT_THAT(result.status.at(0).message(), HasSubstr("l0."));
  EXPECT_EQ(result.old_state, before);
}

TEST(Execute, AWrongPackOffsetIsCaughtAsWell) {
  const auto catalog = SmallModel(2);
  const auto from = MapOf(catalog, "tp=2,dp=1");
  const auto to = MapOf(catalog, "tp=1,dp=1");
  SwitchOptions options;
  options.timeout = 2s;
  options.change = [](Program* program) {
    if (program->rank != 1) return;
    for (Fragment& fragment : program->phases[0].sends[0].fragments) {
      if (fragment.region.offset > 0) fragment.region.offset -= 1;
    }
  };
  const SwitchResult result = RunSwitch(*from, MakeState(*from, DistinctValue), *to, options);
  EXPECT_EQ(result.status.at(0).code(), StatusCode::kDataLoss) << result.ToString();
}

// ---- Cases from the field.

// C13: column cuts, a transposed tensor, a slice with an offset; strided or not on either side.
TEST(Cases, C13StridedViews) {
  auto catalog = std::make_shared<StateCatalog>();
  vps::Parameter w = ParameterOf("w", {6, 8}, vps::Split::Balanced(1), 0);
  w.kinds = {{vps::Kind::kParam, vps::DType::kF32}};
  ASSERT_TRUE(catalog->Add(w).ok());
  const vps::Buffer buffer{"w", vps::Kind::kParam, vps::DType::kF32, 100};
  const auto list = [&](int64_t offset, vps::Coords strides) {
    auto map = vps::ExplicitShardMap::Make(
        catalog, {{0, {buffer}, {{0, vps::Box({0, 0}, {6, 8}), 0, offset, strides}}}});
    EXPECT_TRUE(map.ok()) << map.status().ToString();
    return std::shared_ptr<const ShardMap>(*map);
  };
  const std::vector<std::shared_ptr<const ShardMap>> whole = {
      MapOf(catalog, "tp=1,dp=1"), list(7, {8, 1}), list(0, {1, 6}) /* transposed */,
      list(3, {16, 2})};
  const std::vector<std::shared_ptr<const ShardMap>> split = {MapOf(catalog, "tp=2,dp=1"),
                                                              MapOf(catalog, "tp=4,dp=1")};
  for (const auto& a : whole) {
    for (const auto& b : split) {
      const State start = MakeState(*a, DistinctValue);
      const SwitchResult out = RunSwitch(*a, start, *b, {});
      ASSERT_TRUE(out.ok()) << out.ToString();
      EXPECT_EQ(out.new_state, MakeState(*b, DistinctValue));
      for (const auto& c : whole) {
        const SwitchResult back = RunSwitch(*b, out.new_state, *c, {});
        ASSERT_TRUE(back.ok()) << back.ToString();
        EXPECT_EQ(back.new_state, MakeState(*c, DistinctValue));
      }
    }
  }
}

// C14: ranks with nothing to say, tensors without elements, fewer heads than ranks.
TEST(Cases, C14ZeroBytePieces) {
  auto catalog = std::make_shared<StateCatalog>();
  ASSERT_TRUE(catalog->Add(ParameterOf("empty", {0, 8}, vps::Split::Balanced(0), 0)).ok());
  ASSERT_TRUE(catalog->Add(ParameterOf("kv", {2, 5}, vps::Split::Balanced(0), 0)).ok());
  const std::vector<std::string> specs = {"tp=1,dp=1", "tp=4,dp=1", "tp=1,dp=4,zero=1",
                                          "tp=1,dp=1,ranks=3", "tp=2,dp=2"};
  for (const std::string& a : specs) {
    for (const std::string& b : specs) {
      SCOPED_TRACE(a + " to " + b);
      const auto from = MapOf(catalog, a);
      const auto to = MapOf(catalog, b);
      SwitchOptions options;
      options.ranks = {0, 1, 2, 3, 5};
      const SwitchResult result = RunSwitch(*from, MakeState(*from, DistinctValue), *to, options);
      ASSERT_TRUE(result.ok()) << result.ToString();
      EXPECT_EQ(result.new_state, MakeState(*to, DistinctValue));
      for (const Program& program : testing::CompileAll(*from, *to, {}, options.ranks)) {
        for (const auto* messages : {&program.phases[0].sends, &program.phases[0].receives}) {
          for (const Message& message : *messages) EXPECT_GT(message.bytes, 0);
        }
      }
    }
  }
}

// Everyone sends to all others: `pieces` between each pair of `n` ranks, of sizes from 4 B to
// `largest`.
std::pair<std::shared_ptr<const ShardMap>, std::shared_ptr<const ShardMap>> AllToAll(
    int n, int pieces, int64_t largest) {
  auto catalog = std::make_shared<StateCatalog>();
  std::vector<vps::ExplicitShardMap::Holding> before;
  std::vector<vps::ExplicitShardMap::Holding> after;
  for (RankId r = 0; r < n; ++r) {
    before.push_back({r, {{"b", vps::Kind::kParam, vps::DType::kF32, 0}}, {}});
    after.push_back({r, {{"a", vps::Kind::kParam, vps::DType::kF32, 0}}, {}});
  }
  Random random(static_cast<uint64_t>(n * 1000 + pieces));
  const auto place = [](vps::ExplicitShardMap::Holding* holding, vps::TensorId tensor,
                        int64_t elems) {
    const int64_t start = holding->buffers[0].elems;
    holding->shards.push_back({tensor, vps::Box({0}, {elems}), 0, start, {1}});
    holding->buffers[0].elems += elems;
  };
  vps::TensorId tensor = 0;
  for (int k = 0; k < pieces; ++k) {
    for (RankId a = 0; a < n; ++a) {
      for (RankId b = 0; b < n; ++b) {
        if (a == b || (k > 0 && k % (a + b) == 0)) continue;  // uneven counts
        const int64_t elems = k == 0 ? largest / 4 : random.Between(1, 40);
        vps::Parameter p = ParameterOf(fmt::format("t{}", tensor), {elems}, vps::Split::None(), 0);
        p.kinds = {{vps::Kind::kParam, vps::DType::kF32}};
        EXPECT_TRUE(catalog->Add(p).ok());
        place(&before[static_cast<size_t>(a)], tensor, elems);
        place(&after[static_cast<size_t>(b)], tensor, elems);
        ++tensor;
      }
    }
  }
  auto from = vps::ExplicitShardMap::Make(catalog, before);
  auto to = vps::ExplicitShardMap::Make(catalog, after);
  EXPECT_TRUE(from.ok() && to.ok());
  return {*from, *to};
}

// A value per buffer position; cheaper than the element oracle for megabytes.
State Numbered(const ShardMap& map) {
  State state;
  for (const RankId rank : map.Ranks()) {
    for (const vps::Buffer& buffer : map.BuffersOf(rank)) {
      state[rank].emplace_back(static_cast<size_t>(buffer.bytes()));
    }
    for (const vps::Shard& shard : map.ShardsOf(rank)) {
      auto& bytes = state[rank][static_cast<size_t>(shard.buffer)];
      for (int64_t i = 0; i < shard.box.elems(); ++i) {
        const auto value = static_cast<uint32_t>(
            Mix64(static_cast<uint64_t>(shard.tensor) << 32 | static_cast<uint64_t>(i)));
        std::memcpy(&bytes[static_cast<size_t>((shard.offset + i) * 4)], &value, 4);
      }
    }
  }
  return state;
}

TEST(Cases, C25AllToAllNeverHangs) {
  for (const int n : {3, 4, 5}) {
    for (const auto& [pieces, largest] :
         {std::pair{1, 4}, {1, 8 << 20}, {17, 4096}, {500, 1 << 16}}) {
      if (n > 3 && pieces == 500) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {} pieces, {} bytes", n, pieces, largest));
      const auto [from, to] = AllToAll(n, pieces, largest);
      SwitchOptions options;
      options.transport = {.max_outstanding = 1, .max_message = 1 << 20, .timing_seed = 5};
      const SwitchResult result = RunSwitch(*from, Numbered(*from), *to, options);
      ASSERT_TRUE(result.ok()) << result.ToString();
      EXPECT_TRUE(result.new_state == Numbered(*to));
      for (const auto& [rank, stats] : result.stats) EXPECT_LE(stats.messages, n - 1);
    }
  }
}

// A pair that disagrees is a timeout or an error that names both, never a hang.
TEST(Cases, C25AMismatchNamesThePair) {
  const auto catalog = SmallModel(1);
  const auto from = MapOf(catalog, "tp=1,dp=1,ranks=1");
  const auto to = MapOf(catalog, "tp=1,dp=1,ranks=4");
  SwitchOptions options;
  options.timeout = 200ms;
  options.change = [](Program* program) {
    if (program->rank == 1) program->phases[0].sends.clear();
  };
  const SwitchResult result = RunSwitch(*from, MakeState(*from, DistinctValue), *to, options);
  EXPECT_TRUE(result.status.at(1).ok());
  EXPECT_FALSE(result.status.at(4).ok());
  EXPECT_THAT(result.status.at(4).message(), HasSubstr("receive 4 <- 1"));
}

// C26: state that lives in {1, 3} or {3, 1} goes to {2, 0}; ranks are identities everywhere.
TEST(Cases, C26RanksOfASubgroup) {
  const auto catalog = SmallModel(2);
  for (const std::string ranks : {"1+3", "3+1"}) {
    for (const std::string degrees : {"tp=2,dp=1", "tp=1,dp=2,zero=1", "pp=2,dp=1"}) {
      const auto from = MapOf(catalog, degrees + ",ranks=" + ranks);
      const auto to = MapOf(catalog, degrees + ",ranks=2+0");
      const State before = MakeState(*from, DistinctValue);
      const SwitchResult there = RunSwitch(*from, before, *to, {});
      ASSERT_TRUE(there.ok()) << there.ToString();
      EXPECT_EQ(there.new_state, MakeState(*to, DistinctValue));
      const SwitchResult back = RunSwitch(*to, there.new_state, *from, {});
      ASSERT_TRUE(back.ok()) << back.ToString();
      EXPECT_EQ(back.new_state, before);
    }
  }
}

// C28: a piece of 5 MiB + 4 B over a transport that takes 1 MiB, and a length that the two sides
// see differently.
TEST(Cases, C28LongPiecesAreCutAndMismatchesAreErrors) {
  auto catalog = std::make_shared<StateCatalog>();
  vps::Parameter p = ParameterOf("long", {(5 << 20) + 3}, vps::Split::None(), 0);
  p.kinds = {{vps::Kind::kParam, vps::DType::kU8}};
  ASSERT_TRUE(catalog->Add(p).ok());
  const auto from = MapOf(catalog, "dp=1");
  const auto to = MapOf(catalog, "dp=1,ranks=1");
  State before;
  before[0] = {std::vector<std::byte>((5 << 20) + 3)};
  for (size_t i = 0; i < before[0][0].size(); ++i)
    before[0][0][i] = static_cast<std::byte>(Mix64(i));
  SwitchOptions options;
  options.transport = {.max_message = 1 << 20};
  const SwitchResult result = RunSwitch(*from, before, *to, options);
  ASSERT_TRUE(result.ok()) << result.ToString();
  EXPECT_TRUE(result.new_state.at(1) == before.at(0));

  options.timeout = 500ms;
  options.change = [](Program* program) {
    if (program->rank != 1) return;
    Message& message = program->phases[0].receives[0];
    message.fragments[0].region.extent[0] -= 5;
    message.bytes -= 5;
  };
  const SwitchResult mismatch = RunSwitch(*from, before, *to, options);
  EXPECT_FALSE(mismatch.status.at(0).ok());
  EXPECT_FALSE(mismatch.status.at(1).ok());
  EXPECT_EQ(mismatch.old_state, before);
}

TEST(Cases, C16MastersKeepEveryBit) {
  auto catalog = std::make_shared<StateCatalog>();
  vps::Parameter p = ParameterOf("w", {7, 9}, vps::Split::Balanced(0), 0);
  p.kinds = vps::Bf16AdamKinds();
  ASSERT_TRUE(catalog->Add(p).ok());
  const auto value = [&](const vps::testing::Element& e) -> uint64_t {
    // No bf16 number, and of other exponents than its neighbours', so that their bf16 copies differ.
    const float fraction = 1.0F + static_cast<float>(e.index + 1) * 0x1p-20F;
    const float master = std::ldexp(fraction, static_cast<int>(e.index % 7));
    const auto bits = std::bit_cast<uint32_t>(master);
    return catalog->tensor(e.tensor).dtype == vps::DType::kBF16 ? (bits + 0x8000U) >> 16 : bits;
  };
  for (const auto& [a, b] :
       {std::pair{"dp=4,zero=1", "dp=2,zero=1"}, {"tp=2,dp=2,zero=1", "tp=1,dp=3,zero=1"}}) {
    const auto from = MapOf(catalog, a);
    const auto to = MapOf(catalog, b);
    const SwitchResult result = RunSwitch(*from, MakeState(*from, value), *to, {});
    ASSERT_TRUE(result.ok()) << result.ToString();
    EXPECT_EQ(result.new_state, MakeState(*to, value));
  }
}

}  // namespace
}  // namespace dynatrain::engine
