#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "dynatrain/engine/checker.h"
#include "dynatrain/engine/order.h"
#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/planner/brute_force.h"
#include "dynatrain/vps/digest.h"

namespace dynatrain::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::RandomSwitch;
using testing::RunSwitch;
using testing::SwitchOptions;
using testing::SwitchResult;
using transport::Fault;
using vps::ShardMap;
using vps::StateCatalog;
using vps::testing::DistinctValue;
using vps::testing::MakeState;
using vps::testing::MapOf;
using vps::testing::State;

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

// Sometimes with ranks that hold nothing.
RandomSwitch MakeCase(uint64_t seed) {
  Random random(seed);
  RandomSwitch c = testing::DrawSwitch(seed, &random);
  if (random.OneIn(4)) c.options.ranks.push_back(c.options.ranks.back() + 3);
  const auto window = static_cast<int32_t>(random.Between(1, 5));
  c.options.change = [window](Program* program) { program->window = window; };
  return c;
}

TEST(Execute, RandomSwitchesOverAnUnkindTransportAreExact) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomSwitch c = MakeCase(seed);
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
    const RandomSwitch c = MakeCase(seed);
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
      for (const Message& message : phase.sends) EXPECT_LT(message.tag, kTagsOfPrograms);
    }
  }
}

TEST(Compile, PhasesShareTagsWhereThereAreTooFew) {
  const auto catalog = SmallModel(2);
  const auto from = MapOf(catalog, "tp=2,dp=1");
  const auto to = MapOf(catalog, "dp=2,zero=1");
  const auto route = planner::PlanRoute(*from, *to, {}, 0);
  ASSERT_TRUE(route.ok());
  std::vector<RankId> ranks(50'000);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto program = Compile(*route, *from, *to, {}, ranks, {.phases = 6});
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  std::set<transport::Tag> tags;
  size_t messages = 0;
  for (const Phase& phase : program->phases) {
    for (const Message& message : phase.sends) {
      EXPECT_LE(message.tag + kTagsPerMessage, kTagsOfPrograms);
      tags.insert(message.tag);
      ++messages;
    }
  }
  EXPECT_LT(tags.size(), messages);
  ranks.resize(1'000'000);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(Compile(*route, *from, *to, {}, ranks).status().code(), StatusCode::kInvalidArgument);
}

// Both ends post what they have for each other in the same order, so that tags need not differ.
TEST(Execute, PhasesMayShareTags) {
  const auto catalog = SmallModel(4);
  const auto from = MapOf(catalog, "tp=2,pp=2,dp=1");
  const auto to = MapOf(catalog, "dp=3,zero=1");
  for (const Mode mode : {Mode::kKeep, Mode::kStream}) {
    testing::SwitchOptions options;
    options.compile.mode = mode;
    options.compile.phases = 7;
    options.change = [](Program* program) {
      for (Phase& phase : program->phases) {
        for (auto* messages : {&phase.receives, &phase.sends})
          for (Message& message : *messages)
            message.tag = static_cast<transport::Tag>(message.round) * kTagsPerMessage;
      }
    };
    const SwitchResult result = RunSwitch(*from, MakeState(*from, DistinctValue), *to, options);
    ASSERT_TRUE(result.ok()) << result.ToString();
    EXPECT_EQ(result.new_state, MakeState(*to, DistinctValue));
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

}  // namespace
}  // namespace dynatrain::engine
