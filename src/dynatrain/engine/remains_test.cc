// A streaming switch that breaks half-way: what is said to be held is there, bit for bit, and what
// is said to be lost is nowhere.
#include "dynatrain/engine/remains.h"

#include <gtest/gtest.h>

#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::engine {
namespace {

using namespace std::chrono_literals;
using planner::Piece;
using testing::SwitchOptions;
using testing::SwitchResult;
using vps::Box;
using vps::LayoutShardMap;
using vps::testing::DistinctValue;
using vps::testing::MakeState;
using vps::testing::State;

struct BrokenSwitch {
  std::shared_ptr<const vps::StateCatalog> catalog;
  std::shared_ptr<const LayoutShardMap> from, to;
  SwitchOptions options;
  std::vector<Program> programs;
  RankId victim = 0;
  SwitchResult result;
};

BrokenSwitch Break(uint64_t seed, transport::Fault::Kind kind) {
  Random random(seed);
  BrokenSwitch broken;
  do {
    broken.catalog = vps::testing::RandomCatalog(&random, 0);
    const auto map = [&] {
      return *LayoutShardMap::Make(broken.catalog,
                                   vps::testing::RandomLayout(&random, *broken.catalog, 0));
    };
    broken.from = map();
    broken.to = map();
    broken.options.ranks = testing::UnionOfRanks(*broken.from, *broken.to);
  } while (broken.options.ranks.size() > 9);
  broken.options.compile = {.mode = Mode::kStream,
                            .phases = static_cast<int32_t>(random.Between(2, 9)),
                            .window = 2,
                            .granule_bytes = 4096};
  broken.options.timeout = 300ms;
  broken.options.transport = {.rendezvous = false};
  broken.programs = testing::CompileAll(*broken.from, *broken.to, {}, broken.options.ranks,
                                        broken.options.compile);
  int64_t most_sends = 0;
  for (const Program& program : broken.programs) {
    if (program.stats.messages <= most_sends) continue;
    most_sends = program.stats.messages;
    broken.victim = program.rank;
  }
  // A message is its data, its hashes and their acknowledgement.
  const int64_t at = most_sends == 0 ? 0 : random.Between(0, 2 * most_sends - 1);
  broken.options.faults[broken.victim] = {{kind, at, seed, {}}};
  broken.result = testing::RunSwitch(*broken.from, MakeState(*broken.from, DistinctValue),
                                     *broken.to, broken.options);
  return broken;
}

uint64_t HashAt(const State& state, RankId rank, const Region& region) {
  return HashRegion(state.at(rank)[static_cast<size_t>(region.buffer)], region);
}

// Whether the rank has the right bits of the piece in its old or in its new memory.
bool Has(const BrokenSwitch& broken, const State& old_right, const State& new_right,
         const Program& program, const Piece& piece) {
  const auto old_region = RegionOf(piece, program.old_shards, program.old_buffers);
  if (old_region.ok() && HashAt(broken.result.old_state, program.rank, *old_region) ==
                             HashAt(old_right, program.rank, *old_region)) {
    return true;
  }
  const auto new_region = RegionOf(piece, program.new_shards, program.new_buffers);
  return new_region.ok() && HashAt(broken.result.new_state, program.rank, *new_region) ==
                                HashAt(new_right, program.rank, *new_region);
}

// The parts of a lost piece in the rank's old shards must be gone, every element of them.
void ExpectGone(const BrokenSwitch& broken, const State& old_right, const Program& program,
                const Piece& piece) {
  for (const vps::Shard& shard : program.old_shards) {
    if (shard.tensor != piece.tensor) continue;
    const Box part = vps::Intersect(shard.box, piece.box);
    for (int64_t i = 0; i < part.elems(); ++i) {
      std::vector<Box> one;
      vps::AppendFlatRangeBoxes(part, i, i + 1, &one);
      const auto region = RegionOf({piece.tensor, one[0]}, program.old_shards, program.old_buffers);
      EXPECT_NE(HashAt(broken.result.old_state, program.rank, *region),
                HashAt(old_right, program.rank, *region))
          << "rank " << program.rank << " still holds " << one[0].ToString() << " of tensor "
          << piece.tensor;
    }
  }
}

struct Seen {
  int broken = 0, gave_back = 0, missing = 0;
};

void Check(uint64_t seed, transport::Fault::Kind kind, bool victim_lives, Seen* seen) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const BrokenSwitch broken = Break(seed, kind);
  if (broken.result.ok()) {
    EXPECT_EQ(broken.result.new_state, MakeState(*broken.to, DistinctValue));
    return;
  }
  ++seen->broken;
  const State old_right = MakeState(*broken.from, DistinctValue);
  const State new_right = MakeState(*broken.to, DistinctValue);
  std::vector<Piece> held;
  for (const Program& program : broken.programs) {
    if (!victim_lives && program.rank == broken.victim) continue;
    const ExecutionProgress& progress = broken.result.progress.at(program.rank);
    EXPECT_LE(progress.received, progress.begun);
    EXPECT_LE(progress.released, progress.received);
    if (GaveBack(program, progress)) {
      ++seen->gave_back;
    } else if (broken.result.old_state.contains(program.rank)) {
      EXPECT_EQ(broken.result.old_state.at(program.rank), old_right.at(program.rank));
    }
    for (const Piece& piece : RemainsOf(program, progress)) {
      EXPECT_TRUE(Has(broken, old_right, new_right, program, piece))
          << "rank " << program.rank << ", tensor " << piece.tensor << " " << piece.box.ToString();
      held.push_back(piece);
    }
  }
  const std::vector<Piece> missing = MissingFrom(*broken.catalog, held);
  if (victim_lives) {
    EXPECT_TRUE(missing.empty()) << "a source forgot what nobody acknowledged";
  }
  for (const Piece& piece : missing) {
    ++seen->missing;
    for (const Program& program : broken.programs) {
      if (program.rank != broken.victim) ExpectGone(broken, old_right, program, piece);
    }
  }
}

// Whatever a bad wire does is caught, or the state is exact all the same.
TEST(Remains, NothingIsLostWhileAllLive) {
  using Kind = transport::Fault::Kind;
  Seen seen;
  uint64_t seed = 0;
  for (const Kind kind :
       {Kind::kFlipBit, Kind::kDrop, Kind::kDuplicate, Kind::kTruncate, Kind::kReorder}) {
    for (int i = 0; i < 4 && !HasFailure(); ++i) Check(++seed, kind, /*victim_lives=*/true, &seen);
  }
  EXPECT_GT(seen.broken, 7);
  EXPECT_GT(seen.gave_back, 5);
}

TEST(Remains, WhatADeadRankAloneHeldIsNamed) {
  Seen seen;
  for (uint64_t seed = 101; seed <= 112 && !HasFailure(); ++seed)
    Check(seed, transport::Fault::Kind::kDie, /*victim_lives=*/false, &seen);
  EXPECT_GT(seen.broken, 5);
  EXPECT_GT(seen.gave_back, 2);
  EXPECT_GT(seen.missing, 2);
}

// A bf16 parameter of which only the fp32 master is left is not lost where it is derived; one whose
// master is gone too, and a master of which only the parameter is left, are.
TEST(AddDerivable, WhatAHeldMasterGivesIsNotMissing) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  const auto add = [&](std::string name, std::vector<vps::KindSpec> kinds) {
    vps::Parameter p;
    p.name = std::move(name);
    p.shape = {6, 8};
    p.homes = {vps::Home::Layer(0)};
    p.kinds = std::move(kinds);
    ASSERT_TRUE(catalog->Add(std::move(p)).ok());
  };
  add("a", vps::Bf16AdamKinds());
  add("b", vps::Bf16AdamKinds());
  add("c", {{vps::Kind::kParam, vps::DType::kF16}, {vps::Kind::kMaster, vps::DType::kF32}});
  const auto id = [&](std::string_view name, vps::Kind kind) {
    return *catalog->Find(*catalog->FindParameter(name), kind);
  };
  std::vector<Piece> held;
  for (const vps::StateTensor& tensor : catalog->tensors()) {
    if (tensor.kind != vps::Kind::kParam) held.push_back({tensor.id, Box({0, 0}, {6, 8})});
  }
  // The lower rows of b's master went with those of b; the upper half of b's parameter is there.
  std::erase_if(held, [&](const Piece& p) { return p.tensor == id("b", vps::Kind::kMaster); });
  held.push_back({id("b", vps::Kind::kMaster), Box({0, 0}, {4, 8})});
  EXPECT_EQ(MissingFrom(*catalog, held).size(), 4U) << "a, b and c, and rows of b's master";
  AddDerivable(*catalog, &held);
  const std::vector<Piece> expected = {{id("b", vps::Kind::kParam), Box({4, 0}, {6, 8})},
                                       {id("b", vps::Kind::kMaster), Box({4, 0}, {6, 8})},
                                       {id("c", vps::Kind::kParam), Box({0, 0}, {6, 8})}};
  EXPECT_EQ(MissingFrom(*catalog, held), expected);
}

TEST(MissingFrom, SubtractsOverlappingBoxes) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  vps::Parameter p;
  p.name = "w";
  p.shape = {6, 8};
  p.homes = {vps::Home::Layer(0)};
  p.kinds = {vps::Fp32AdamKinds().front()};
  ASSERT_TRUE(catalog->Add(std::move(p)).ok());
  const auto elems = [](const std::vector<Piece>& pieces) {
    int64_t sum = 0;
    for (const Piece& piece : pieces) sum += piece.box.elems();
    return sum;
  };
  EXPECT_EQ(elems(MissingFrom(*catalog, {})), 48);
  EXPECT_TRUE(MissingFrom(*catalog, {{0, Box({0, 0}, {6, 5})}, {0, Box({0, 3}, {6, 8})}}).empty());
  const auto ring = MissingFrom(*catalog, {{0, Box({1, 2}, {4, 7})}, {0, Box({2, 1}, {5, 6})}});
  EXPECT_EQ(elems(ring), 48 - 15 - 15 + 8);
  for (const Piece& piece : ring) {
    EXPECT_FALSE(vps::Overlaps(piece.box, Box({1, 2}, {4, 7}))) << piece.box.ToString();
    EXPECT_FALSE(vps::Overlaps(piece.box, Box({2, 1}, {5, 6}))) << piece.box.ToString();
  }
}

}  // namespace
}  // namespace dynatrain::engine
