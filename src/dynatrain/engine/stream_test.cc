// Phases and streaming: exact, inside the stated peak, and never ahead of an acknowledgement.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "dynatrain/engine/budget.h"
#include "dynatrain/engine/checker.h"
#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/memory_plan.h"
#include "dynatrain/engine/phases.h"
#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::engine {
namespace {

using namespace std::chrono_literals;
using planner::Piece;
using ::testing::HasSubstr;
using testing::Numbered;
using testing::RandomSwitch;
using testing::RunSwitch;
using testing::SwitchOptions;
using testing::SwitchResult;
using vps::Box;
using vps::Coords;
using vps::ShardMap;
using vps::StateCatalog;
using vps::testing::DistinctValue;
using vps::testing::MakeState;
using vps::testing::MapOf;
using vps::testing::State;

// `layers` layers of a [rows, columns] matrix split by rows, one split by columns, and a replicated
// vector.
std::shared_ptr<const StateCatalog> Model(int32_t layers, int64_t rows, int64_t columns) {
  auto catalog = std::make_shared<StateCatalog>();
  const auto add = [&](std::string name, vps::Coords shape, vps::Split split, int32_t layer) {
    vps::Parameter p;
    p.name = std::move(name);
    p.shape = shape;
    p.split = std::move(split);
    p.homes = {vps::Home::Layer(layer)};
    p.kinds = vps::Fp32AdamKinds();
    EXPECT_TRUE(catalog->Add(std::move(p)).ok());
  };
  for (int32_t l = 0; l < layers; ++l) {
    add(fmt::format("l{}.up", l), {rows, columns}, vps::Split::Balanced(0), l);
    add(fmt::format("l{}.down", l), {columns, rows}, vps::Split::Balanced(1), l);
    add(fmt::format("l{}.norm", l), {columns}, vps::Split::None(), l);
  }
  return catalog;
}

// What all ranks of a switch say of phases: of every element of every tensor.
class PhaseTable {
 public:
  explicit PhaseTable(const StateCatalog& catalog) : catalog_(catalog) {
    for (const vps::StateTensor& tensor : catalog.tensors()) {
      phase_of_.emplace_back(static_cast<size_t>(vps::ElemCount(catalog.shape_of(tensor.id))), -1);
    }
  }

  // Every element of a piece of `route` has one phase, the same that other ranks have told.
  void Add(const planner::Route& route, int32_t phases, Random* random) {
    const PhaseCuts cuts(route, catalog_, phases);
    for (const auto& [piece, cls] : route.pieces) {
      int64_t seen = 0;
      int32_t last = 0;
      cuts.Visit(piece, [&](int32_t phase, const Piece& part) {
        EXPECT_GE(phase, last);
        EXPECT_LT(phase, phases);
        last = phase;
        seen += part.box.elems();
        Tell(part, phase);
      });
      EXPECT_EQ(seen, piece.box.elems());
      // A part of the piece, as stripes are, is cut at the same places as all of it.
      const Box drawn = vps::testing::RandomBox(random, piece.box.shape());
      Coords lo = piece.box.lo(), hi = lo;
      for (int axis = 0; axis < lo.dims(); ++axis) {
        lo[axis] += drawn.lo()[axis];
        hi[axis] += drawn.hi()[axis];
      }
      const Box stripe(lo, hi);
      if (stripe.empty()) continue;
      seen = 0;
      cuts.Visit({piece.tensor, stripe}, [&](int32_t phase, const Piece& part) {
        seen += part.box.elems();
        Tell(part, phase);
      });
      EXPECT_EQ(seen, stripe.elems());
    }
  }

  int64_t without_phase() const {
    int64_t count = 0;
    for (const auto& phases : phase_of_) count += std::count(phases.begin(), phases.end(), -1);
    return count;
  }

 private:
  void Tell(const Piece& part, int32_t phase) {
    for (const auto& e : vps::testing::ElementsOf(catalog_, part.tensor, part.box)) {
      int32_t& known = phase_of_[static_cast<size_t>(part.tensor)][static_cast<size_t>(e.index)];
      EXPECT_TRUE(known == -1 || known == phase) << known << " or " << phase;
      known = phase;
    }
  }

  const StateCatalog& catalog_;
  std::vector<std::vector<int32_t>> phase_of_;
};

TEST(PhaseCuts, EveryElementHasOnePhaseOnAllRanks) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const RandomSwitch c = testing::DrawSwitch(seed, &random);
    const planner::PlanOptions plan = {.relays = random.OneIn(2), .stripe_bytes = 64};
    const auto phases = static_cast<int32_t>(random.Between(1, 40));
    PhaseTable table(*c.catalog);
    for (const RankId rank : c.options.ranks) {
      const auto route = planner::PlanRoute(*c.from, *c.to, c.options.topology, rank, plan);
      ASSERT_TRUE(route.ok()) << route.status().ToString();
      table.Add(*route, phases, &random);
    }
    EXPECT_EQ(table.without_phase(), 0);
    if (HasFailure()) return;
  }
}

// The bytes of each class go in even runs, so that no rank takes in long before it gives.
TEST(PhaseCuts, EachPhaseHasItsShareOfEachClass) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const RandomSwitch c = testing::DrawSwitch(seed, &random);
    const auto phases = static_cast<int32_t>(random.Between(2, 40));
    const auto route = planner::PlanRoute(*c.from, *c.to, {}, c.options.ranks.front());
    ASSERT_TRUE(route.ok()) << route.status().ToString();
    const PhaseCuts cuts(*route, *c.catalog, phases);
    std::map<int32_t, std::vector<ByteCount>> bytes;
    for (const auto& [piece, cls] : route->pieces) {
      auto& of_class = bytes[cls];
      of_class.resize(static_cast<size_t>(phases));
      const ByteCount elem = vps::ElemBytes(c.catalog->tensor(piece.tensor).dtype);
      cuts.Visit(piece, [&](int32_t phase, const Piece& part) {
        of_class[static_cast<size_t>(phase)] += part.box.elems() * elem;
      });
    }
    for (const auto& [cls, of_class] : bytes) {
      ByteCount total = 0;
      for (const ByteCount b : of_class) total += b;
      const ByteCount block = std::max(total / phases / 8, c.catalog->total_bytes() / phases / 64);
      ByteCount so_far = 0;
      for (int32_t p = 0; p < phases; ++p) {
        so_far += of_class[static_cast<size_t>(p)];
        // Cuts are moved down, by less than a block or an element.
        EXPECT_LE(so_far, total * (p + 1) / phases + 8);
        EXPECT_GE(so_far, total * (p + 1) / phases - block - 8);
      }
    }
    if (HasFailure()) return;
  }
}

RandomSwitch MakeCase(uint64_t seed) {
  Random random(seed);
  RandomSwitch c = testing::DrawSwitch(seed, &random);
  // Acknowledgements take 8 bytes and are not cut.
  c.options.transport.max_message = std::max<ByteCount>(8, c.options.transport.max_message);
  c.options.compile.mode = random.OneIn(3) ? Mode::kKeep : Mode::kStream;
  c.options.compile.phases = static_cast<int32_t>(random.Between(1, 12));
  c.options.compile.window = static_cast<int32_t>(random.Between(1, 4));
  c.options.compile.granule_bytes = random.OneIn(2) ? 4096 : 16384;
  return c;
}

// The larger of old and new state of a rank, in whole pages.
ByteCount StateBytes(const ShardMap& from, const ShardMap& to, RankId rank) {
  return std::max(MemoryBytes(from.BuffersOf(rank)), MemoryBytes(to.BuffersOf(rank)));
}

void ExpectWithinStatedPeak(const SwitchResult& result, const ShardMap& from, const ShardMap& to) {
  for (const auto& [rank, peak] : result.peak_bytes) {
    EXPECT_LE(peak, StateBytes(from, to, rank) + result.stats.at(rank).peak_extra_bytes)
        << "rank " << rank;
  }
}

TEST(Stream, RandomPhasedSwitchesAreExactAndWithinTheStatedPeak) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomSwitch c = MakeCase(seed);
    const State before = MakeState(*c.from, DistinctValue);
    const SwitchResult result = RunSwitch(*c.from, before, *c.to, c.options);
    ASSERT_TRUE(result.ok()) << result.ToString();
    EXPECT_EQ(result.new_state, MakeState(*c.to, DistinctValue));
    if (c.options.compile.mode == Mode::kKeep) {
      for (const auto& [rank, buffers] : before) EXPECT_EQ(result.old_state.at(rank), buffers);
    } else {
      ExpectWithinStatedPeak(result, *c.from, *c.to);
    }
    if (HasFailure()) return;
  }
}

// The peak above would be seen to be wrong: all new memory at first, all old memory at last.
TEST(Stream, APeakAboveTheStatedOneIsSeen) {
  const auto catalog = Model(4, 64, 96);
  const auto from = MapOf(catalog, "tp=2,dp=1");
  const auto to = MapOf(catalog, "tp=1,dp=2,zero=1");
  SwitchOptions options;
  options.compile = {.mode = Mode::kStream, .phases = 8, .granule_bytes = 4096};
  options.change = [](Program* program) {
    std::vector<MemoryRange> takes, releases;
    for (Phase& phase : program->phases) {
      takes.insert(takes.end(), phase.takes.begin(), phase.takes.end());
      releases.insert(releases.end(), phase.releases.begin(), phase.releases.end());
      for (const MemoryMove& move : phase.moves) {
        takes.push_back(move.to);
        releases.push_back(move.from);
      }
      phase.moves.clear();
      phase.takes.clear();
      phase.releases.clear();
    }
    program->phases.front().takes = std::move(takes);
    program->phases.back().releases = std::move(releases);
  };
  const SwitchResult result = RunSwitch(*from, Numbered(*from), *to, options);
  ASSERT_TRUE(result.ok()) << result.ToString();
  EXPECT_TRUE(result.new_state == Numbered(*to)) << "only the memory differs";
  for (const auto& [rank, peak] : result.peak_bytes)
    EXPECT_GT(peak, StateBytes(*from, *to, rank) + result.stats.at(rank).peak_extra_bytes);
}

TEST(Stream, RandomPhasedProgramsFitTogetherAndCannotDeadlock) {
  for (uint64_t seed = 1000; seed <= 1200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomSwitch c = MakeCase(seed);
    const auto programs =
        testing::CompileAll(*c.from, *c.to, c.options.topology, c.options.ranks, c.options.compile);
    for (const int32_t outstanding : {1, 2})
      EXPECT_EQ(CheckPrograms(programs, outstanding).ToString(), "ok");
    std::set<std::tuple<RankId, RankId, transport::Tag>> tags;
    for (const Program& program : programs) {
      for (const Phase& phase : program.phases) {
        for (const Message& m : phase.sends)
          EXPECT_TRUE(tags.insert({program.rank, m.peer, m.tag}).second);
      }
    }
    if (HasFailure()) return;
  }
}

// Of the old memory, only what was taken over is still there.
void ExpectOldMemoryIsGone(const SwitchResult& result, const ShardMap& from, const ShardMap& to,
                           const CompileOptions& compile) {
  for (const Program& program :
       testing::CompileAll(from, to, {}, testing::UnionOfRanks(from, to), compile)) {
    for (size_t i = 0; i < program.old_buffers.size(); ++i) {
      const auto taken =
          std::count(program.alias.begin(), program.alias.end(), static_cast<int32_t>(i));
      EXPECT_EQ(result.resident_old_bytes.at(program.rank)[i],
                taken == 0 ? 0 : MemoryBytes(program.old_buffers[i]));
    }
  }
}

TEST(Stream, OldMemoryGoesBackToTheSystem) {
  const auto catalog = Model(4, 64, 96);
  for (const auto& [a, b] : {std::pair{"tp=2,dp=1", "tp=4,dp=1"},
                             {"dp=4,zero=1", "dp=2,zero=1"},
                             {"dp=1", "dp=1,ranks=1"}}) {
    const auto from = MapOf(catalog, a);
    const auto to = MapOf(catalog, b);
    SwitchOptions options;
    options.compile = {.mode = Mode::kStream, .phases = 6, .granule_bytes = 4096};
    const SwitchResult result = RunSwitch(*from, Numbered(*from), *to, options);
    ASSERT_TRUE(result.ok()) << result.ToString();
    EXPECT_TRUE(result.new_state == Numbered(*to));
    ExpectWithinStatedPeak(result, *from, *to);
    ExpectOldMemoryIsGone(result, *from, *to, options.compile);
  }
}

// A phase that its needer never acknowledged is still whole at its source.
TEST(Stream, NothingIsReleasedBeforeItIsAcknowledged) {
  const auto catalog = Model(4, 32, 64);
  const auto from = MapOf(catalog, "tp=1,dp=1,ranks=0");
  const auto to = MapOf(catalog, "tp=1,dp=1,ranks=1");
  const State before = Numbered(*from);
  for (const int32_t bad_phase : {0, 2, 5}) {
    SwitchOptions options;
    options.timeout = 300ms;
    options.transport = {.rendezvous = false};
    options.compile = {.mode = Mode::kStream, .phases = 6, .granule_bytes = 4096};
    const auto programs = testing::CompileAll(*from, *to, {}, {0, 1}, options.compile);
    // Each phase is a data and a hash message; flip a bit in the data of the bad one.
    options.faults[0] = {{transport::Fault::Kind::kFlipBit, 2 * bad_phase, 3, {}}};
    const SwitchResult result = RunSwitch(*from, before, *to, options);
    EXPECT_EQ(result.status.at(1).code(), StatusCode::kDataLoss) << result.ToString();
    EXPECT_FALSE(result.status.at(0).ok());
    for (int32_t p = 0; p < 6; ++p) {
      for (const Message& send : programs[0].phases[static_cast<size_t>(p)].sends) {
        for (const Fragment& fragment : send.fragments) {
          const auto buffer = static_cast<size_t>(fragment.region.buffer);
          const bool same = HashRegion(before.at(0)[buffer], fragment.region) ==
                            HashRegion(result.old_state.at(0)[buffer], fragment.region);
          EXPECT_TRUE(same || p < bad_phase)
              << "phase " << p << " was released without acknowledgement";
        }
      }
    }
    EXPECT_EQ(bad_phase > 0, result.old_state != before) << "earlier phases are released";
  }
}

TEST(GranularityWithin, FindsTheFewestPhasesForARankAloneAndStatesTheLeastBudget) {
  const auto catalog = Model(8, 96, 128);
  const auto from = MapOf(catalog, "dp=4,zero=1");
  const auto to = MapOf(catalog, "dp=2,zero=1");
  const std::vector<RankId> ranks = {0, 1, 2, 3};
  CompileOptions options{.mode = Mode::kStream,
                         .window = 1,
                         .granule_bytes = 4096,
                         .transport_bytes = 0,
                         .heap_bytes = 0};
  const auto peak = [&](const planner::Route& route, int32_t phases) {
    CompileOptions with = options;
    with.phases = phases;
    return Compile(route, *from, *to, {}, ranks, with)->stats.peak_extra_bytes;
  };
  for (const RankId rank : ranks) {
    const auto route = planner::PlanRoute(*from, *to, {}, rank);
    const std::map<RankId, std::vector<ByteCount>> peaks = {
        {rank, *PeaksByGranularity(*route, *from, *to, {}, ranks, options)}};
    const auto many = GranularityWithin(200'000, options, peaks);
    ASSERT_TRUE(many.ok()) << many.status().ToString();
    EXPECT_LE(peak(*route, many->phases), 200'000);
    for (int32_t k = 1; k < std::min(many->phases, 5); ++k) EXPECT_GT(peak(*route, k), 200'000);
    EXPECT_EQ(GranularityWithin(int64_t{1} << 40, options, peaks)->phases, 1);
    if (peak(*route, 1) == 0) continue;
    const auto none = GranularityWithin(-1, options, peaks);
    ASSERT_EQ(none.status().code(), StatusCode::kResourceExhausted);
    // The budget that it names does.
    const std::string& message = none.status().message();
    const int64_t least = std::stoll(message.substr(message.find("would do is ") + 12));
    EXPECT_TRUE(GranularityWithin(least, options, peaks).ok()) << message;
  }
}

// Down to 1/64 of the state, for pairs of layouts whose shards shrink and grow evenly.
TEST(GranularityWithin, SmallBudgetsAreMetAndHold) {
  const auto catalog = Model(6, 512, 512);
  std::set<ByteCount> granules;
  for (const auto& [a, b] : {std::pair{"dp=4,zero=1", "dp=2,zero=1"},
                             {"tp=2,dp=2", "tp=4,dp=1"},
                             {"dp=2,zero=1", "tp=2,dp=2,zero=1"},
                             {"tp=2,pp=2,zero=1", "pp=4,split=1+2+2+1,zero=1"},
                             {"pp=2", "pp=2,vpp=3"},
                             {"pp=2", "pp=2,ranks=1+0"},
                             {"dp=3,zero=1,zero_order=forward-contiguous",
                              "dp=4,zero=1,zero_order=forward-contiguous"}}) {
    SCOPED_TRACE(fmt::format("{} to {}", a, b));
    const auto from = MapOf(catalog, a);
    const auto to = MapOf(catalog, b);
    const auto ranks = testing::UnionOfRanks(*from, *to);
    SwitchOptions options;
    options.timeout = 60s;  // many phases, on a busy machine
    options.compile = {.mode = Mode::kStream,
                       .window = 1,
                       .granule_bytes = 131072,
                       .transport_bytes = 0,
                       .heap_bytes = 0};
    std::map<RankId, std::vector<ByteCount>> peaks;
    for (const RankId rank : ranks) {
      const auto route = planner::PlanRoute(*from, *to, {}, rank);
      peaks[rank] = *PeaksByGranularity(*route, *from, *to, {}, ranks, options.compile);
    }
    const auto granularity = GranularityWithin(catalog->total_bytes() / 64, options.compile, peaks);
    ASSERT_TRUE(granularity.ok()) << granularity.status().ToString();
    granularity->ApplyTo(&options.compile);
    granules.insert(granularity->granule_bytes);
    const SwitchResult result = RunSwitch(*from, Numbered(*from), *to, options);
    ASSERT_TRUE(result.ok()) << result.ToString();
    EXPECT_TRUE(result.new_state == Numbered(*to));
    ExpectWithinStatedPeak(result, *from, *to);
    for (const auto& [rank, stats] : result.stats) {
      EXPECT_LE(stats.peak_extra_bytes, catalog->total_bytes() / 64)
          << "rank " << rank << ", " << granularity->phases << " phases";
    }
  }
  EXPECT_EQ(granules, (std::set<ByteCount>{4096, 131072})) << "both are enough somewhere";
}

// C31: the optimizer of a ZeRO-1 job, DP4 to DP2, in 2 MiB granules: no rank ever holds much more
// than its larger shard.
TEST(Cases, C31PeakStaysNearOneShard) {
  const auto catalog = Model(8, 512, 512);  // 48 MiB in fp32 with two moments
  const auto from = MapOf(catalog, "dp=4,zero=1,zero_order=forward-contiguous");
  const auto to = MapOf(catalog, "dp=2,zero=1,zero_order=forward-contiguous");
  const ByteCount cap = 6 << 20;
  const std::vector<RankId> ranks = {0, 1, 2, 3};
  SwitchOptions options;
  options.compile = {.mode = Mode::kStream, .window = 1};
  std::map<RankId, std::vector<ByteCount>> peaks;
  for (const RankId rank : ranks) {
    const auto route = planner::PlanRoute(*from, *to, {}, rank);
    peaks[rank] = *PeaksByGranularity(*route, *from, *to, {}, ranks, options.compile);
  }
  const auto needed = GranularityWithin(cap, options.compile, peaks);
  ASSERT_TRUE(needed.ok()) << needed.status().ToString();
  EXPECT_EQ(needed->granule_bytes, kDefaultGranuleBytes);
  EXPECT_EQ(GranularityWithin(-1, options.compile, peaks).status().code(),
            StatusCode::kResourceExhausted);
  needed->ApplyTo(&options.compile);
  const SwitchResult result = RunSwitch(*from, Numbered(*from), *to, options);
  ASSERT_TRUE(result.ok()) << result.ToString();
  EXPECT_TRUE(result.new_state == Numbered(*to));
  ExpectWithinStatedPeak(result, *from, *to);
  ExpectOldMemoryIsGone(result, *from, *to, options.compile);
  for (const RankId rank : ranks) {
    EXPECT_LE(result.stats.at(rank).peak_extra_bytes, cap);
    // Parameters are the same on all ranks and stay; the moments are half of the optimizer at most,
    // and 12 MiB are a quarter.
    const ByteCount parameters = catalog->total_bytes() / 3;
    EXPECT_LE(result.peak_bytes.at(rank),
              parameters + catalog->total_bytes() / 3 + cap + (1 << 20));
  }
}

TEST(Compile, RefusesOptionsThatMakeNoSense) {
  const auto catalog = Model(1, 4, 4);
  const auto map = MapOf(catalog, "dp=1");
  const auto route = planner::PlanRoute(*map, *map, {}, 0);
  const auto code = [&](const CompileOptions& options) {
    return Compile(*route, *map, *map, {}, {0}, options).status().code();
  };
  EXPECT_EQ(code({.phases = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.window = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.chunk_bytes = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.granule_bytes = 1000}), StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseMode("swap").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*ParseMode("stream"), Mode::kStream);
}

}  // namespace
}  // namespace dynatrain::engine
