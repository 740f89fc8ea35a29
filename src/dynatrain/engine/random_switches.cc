#include "dynatrain/engine/random_switches.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dynatrain/engine/budget.h"
#include "dynatrain/engine/checker.h"
#include "dynatrain/engine/memory_plan.h"
#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::engine::testing {
namespace {

using vps::ShardMap;
using vps::testing::DistinctValue;
using vps::testing::MakeState;

struct BudgetedSwitch : RandomSwitch {
  ByteCount budget = 0;
};

// Nodes of 1 to 6 ranks each, over all ranks there may be.
planner::Topology UnevenNodes(Random* random, RankId last) {
  planner::Topology topology;
  while (static_cast<RankId>(topology.node_of.size()) <= last) {
    const auto size = static_cast<size_t>(random->Between(1, 6));
    topology.node_of.insert(topology.node_of.end(), size, topology.nodes++);
  }
  return topology;
}

std::map<RankId, std::vector<ByteCount>> PeaksOf(const BudgetedSwitch& s) {
  std::map<RankId, std::vector<ByteCount>> peaks;
  for (const RankId rank : s.options.ranks) {
    const auto route = planner::PlanRoute(*s.from, *s.to, s.options.topology, rank, s.options.plan);
    EXPECT_TRUE(route.ok()) << route.status().ToString();
    const auto of_rank = PeaksByGranularity(*route, *s.from, *s.to, s.options.topology,
                                            s.options.ranks, s.options.compile);
    EXPECT_TRUE(of_rank.ok()) << of_rank.status().ToString();
    peaks[rank] = *of_rank;
  }
  return peaks;
}

// A budget between the smallest that works and what one phase needs.
void DrawBudget(Random* random, BudgetedSwitch* s) {
  const auto peaks = PeaksOf(*s);
  ByteCount least = INT64_MAX;
  ByteCount most = 0;
  for (size_t i = 0; i < peaks.begin()->second.size(); ++i) {
    ByteCount peak = 0;
    for (const auto& [rank, of_rank] : peaks) peak = std::max(peak, of_rank[i]);
    least = std::min(least, peak);
    if (i == 0) most = peak;
  }
  s->budget = random->OneIn(3) ? least : random->Between(least, std::max(least, most));
  const auto granularity = GranularityWithin(s->budget, s->options.compile, peaks);
  ASSERT_TRUE(granularity.ok()) << granularity.status().ToString();
  granularity->ApplyTo(&s->options.compile);
}

// One or two ranks on either side, which DrawSwitch all but never has.
void MakeSmall(Random* random, BudgetedSwitch* s) {
  for (auto* map : {&s->from, &s->to}) {
    vps::Layout layout = vps::testing::RandomLayout(random, *s->catalog, /*tp=*/1);
    layout.pp = 1;
    layout.dp = static_cast<int32_t>(random->Between(1, 2));
    layout.split.clear();
    layout.ranks.clear();
    *map = vps::testing::MapOf(s->catalog, layout);
  }
  s->options.ranks = UnionOfRanks(*s->from, *s->to);
}

BudgetedSwitch Draw(uint64_t seed) {
  Random random(seed);
  BudgetedSwitch s = {DrawSwitch(seed, &random)};
  if (random.OneIn(8)) MakeSmall(&random, &s);
  if (!random.OneIn(4)) s.options.topology = UnevenNodes(&random, s.options.ranks.back());
  s.options.plan.relays = random.OneIn(2);
  s.options.plan.stripe_bytes = random.Between(1, 256);
  // Acknowledgements take 8 bytes and are not cut.
  s.options.transport.max_message = std::max<ByteCount>(8, s.options.transport.max_message);
  s.options.compile.mode = random.OneIn(3) ? Mode::kKeep : Mode::kStream;
  s.options.compile.window = static_cast<int32_t>(random.Between(1, 4));
  s.options.compile.granule_bytes = 4096;
  s.options.compile.transport_bytes = 0;  // as the in-process transport
  s.options.compile.heap_bytes = 0;
  DrawBudget(&random, &s);
  return s;
}

void Run(const BudgetedSwitch& s) {
  const auto before = MakeState(*s.from, DistinctValue);
  const SwitchResult result = RunSwitch(*s.from, before, *s.to, s.options);
  ASSERT_TRUE(result.ok()) << result.ToString();
  EXPECT_TRUE(result.new_state == MakeState(*s.to, DistinctValue)) << "the state is not exact";
  if (s.options.compile.mode == Mode::kKeep) {
    for (const auto& [rank, buffers] : before)
      EXPECT_TRUE(result.old_state.at(rank) == buffers) << "rank " << rank << " lost old state";
    return;
  }
  for (const auto& [rank, peak] : result.peak_bytes) {
    EXPECT_LE(peak,
              std::max(MemoryBytes(s.from->BuffersOf(rank)), MemoryBytes(s.to->BuffersOf(rank))) +
                  result.stats.at(rank).peak_extra_bytes)
        << "rank " << rank << " takes more memory than stated";
  }
}

}  // namespace

void CheckRandomSwitch(uint64_t seed, bool run, RandomSwitchCounts* counts) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const BudgetedSwitch s = Draw(seed);
  if (::testing::Test::HasFatalFailure()) return;
  const auto programs = CompileAll(*s.from, *s.to, s.options.topology, s.options.ranks,
                                   s.options.compile, s.options.plan);
  bool relays = false;
  for (const Program& program : programs) {
    EXPECT_LE(program.stats.peak_extra_bytes, s.budget) << "rank " << program.rank;
    for (const Phase& phase : program.phases)
      relays = relays || std::ranges::any_of(phase.sends, &Message::relayed);
  }
  for (const int32_t outstanding : {1, 2})
    EXPECT_EQ(CheckPrograms(programs, outstanding).ToString(), "ok");
  counts->streamed += s.options.compile.mode == Mode::kStream ? 1 : 0;
  counts->phased += s.options.compile.phases > 1 ? 1 : 0;
  counts->relayed += relays ? 1 : 0;
  counts->uneven += s.options.topology.nodes > 1 ? 1 : 0;
  counts->ranks.insert(s.options.ranks.size());
  if (run) Run(s);
}

}  // namespace dynatrain::engine::testing
