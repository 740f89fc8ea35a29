// Programs of routes with relays: pieces enter a node once and go on inside it.
#include <gtest/gtest.h>

#include "dynatrain/engine/checker.h"
#include "dynatrain/engine/simulate.h"
#include "dynatrain/engine/testing_switch.h"

namespace dynatrain::engine {
namespace {

using testing::RandomSwitch;
using vps::LayoutShardMap;
using vps::testing::DistinctValue;
using vps::testing::MakeState;

RandomSwitch MakeCase(uint64_t seed) {
  Random random(seed);
  RandomSwitch c = testing::DrawSwitch(seed, &random);
  c.options.topology.ranks_per_node = static_cast<int32_t>(random.Between(2, 6));
  c.options.plan.relays = true;
  c.options.plan.stripe_bytes = random.Between(1, 64);
  // Acknowledgements take 8 bytes and are not cut.
  c.options.transport.max_message = std::max<ByteCount>(8, c.options.transport.max_message);
  c.options.compile.mode = random.OneIn(2) ? Mode::kKeep : Mode::kStream;
  c.options.compile.phases = static_cast<int32_t>(random.Between(1, 6));
  c.options.compile.window = static_cast<int32_t>(random.Between(1, 4));
  c.options.compile.granule_bytes = 4096;
  return c;
}

int64_t CountRelayed(const std::vector<Program>& programs) {
  int64_t relayed = 0;
  for (const Program& program : programs) {
    for (const Phase& phase : program.phases)
      relayed += std::ranges::count_if(phase.sends, &Message::relayed);
  }
  return relayed;
}

TEST(Relays, RandomSwitchesAreExactAndTheirProgramsFit) {
  int64_t relayed = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomSwitch c = MakeCase(seed);
    const auto programs = testing::CompileAll(*c.from, *c.to, c.options.topology, c.options.ranks,
                                              c.options.compile, c.options.plan);
    relayed += CountRelayed(programs);
    for (const int32_t outstanding : {1, 2})
      ASSERT_EQ(CheckPrograms(programs, outstanding).ToString(), "ok");
    if (seed > 12) continue;
    const auto result =
        testing::RunSwitch(*c.from, MakeState(*c.from, DistinctValue), *c.to, c.options);
    ASSERT_TRUE(result.ok()) << result.ToString();
    ASSERT_EQ(result.new_state, MakeState(*c.to, DistinctValue));
  }
  EXPECT_GT(relayed, 50) << "too few cases relay anything";
}

// One tensor on one rank, wanted by all four ranks of another node: it crosses once.
TEST(Relays, APieceEntersANodeOnce) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  vps::Parameter p;
  p.name = "w";
  p.shape = {64, 64};
  p.homes = {vps::Home::Layer(0)};
  p.kinds = {vps::Fp32AdamKinds().front()};
  ASSERT_TRUE(catalog->Add(std::move(p)).ok());
  const auto from = *LayoutShardMap::Make(catalog, *vps::ParseLayout("dp=1,ranks=0"));
  const auto to = *LayoutShardMap::Make(catalog, *vps::ParseLayout("dp=4,ranks=4-7"));
  planner::Topology topology;
  topology.ranks_per_node = 4;
  topology.intra_node_bytes_per_s = 1e9;
  topology.inter_node_bytes_per_s = 1e8;
  const auto ranks = testing::UnionOfRanks(*from, *to);
  const SimulationOptions options{
      .verify = Verify::kOff, .copy_bytes_per_s = 0, .check_bytes_per_s = 0};
  std::map<bool, SimulationReport> reports;
  for (const bool relays : {false, true}) {
    planner::PlanOptions plan;
    plan.relays = relays;
    plan.stripe_bytes = 4096;
    const auto programs = testing::CompileAll(*from, *to, topology, ranks, {}, plan);
    EXPECT_EQ(CheckPrograms(programs, 1).ToString(), "ok");
    reports[relays] = *Simulate(programs, topology, options);
  }
  const ByteCount bytes = catalog->total_bytes();
  EXPECT_EQ(reports[false].cross_node_bytes, 4 * bytes);
  EXPECT_EQ(reports[true].cross_node_bytes, bytes);
  EXPECT_EQ(reports[true].wire_bytes, 4 * bytes) << "once into the node, three times inside";
  EXPECT_LT(reports[true].seconds, 0.6 * reports[false].seconds);
}

}  // namespace
}  // namespace dynatrain::engine
