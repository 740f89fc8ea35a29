#include "dynatrain/engine/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::engine {
namespace {

using ::testing::HasSubstr;
using vps::LayoutShardMap;

TEST(PhaseCounts, AscendFromOne) {
  EXPECT_EQ(PhaseCounts().front(), 1);
  EXPECT_EQ(PhaseCounts().back(), 1024);
  EXPECT_TRUE(std::ranges::is_sorted(PhaseCounts(), std::less_equal<>()));
}

TEST(PhasesWithin, TakesTheFewestWithWhichAllFitOrNamesTheSmallestBudget) {
  const size_t count = PhaseCounts().size();
  std::map<RankId, std::vector<ByteCount>> peaks;
  peaks[0] = std::vector<ByteCount>(count, 50);
  peaks[7] = std::vector<ByteCount>(count, 90);
  peaks[0][2] = 40;  // 3 phases
  peaks[7][2] = 30;
  peaks[7][3] = 10;  // 4 phases
  EXPECT_EQ(*PhasesWithin(100, 1, peaks), 1);
  EXPECT_EQ(*PhasesWithin(90, 1, peaks), 1);
  EXPECT_EQ(*PhasesWithin(89, 1, peaks), 3);
  EXPECT_EQ(*PhasesWithin(89, 4, peaks), 4);
  EXPECT_EQ(*PhasesWithin(40, 1, peaks), 3);
  const auto none = PhasesWithin(39, 1, peaks);
  ASSERT_EQ(none.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(none.status().message(), HasSubstr("39 bytes"));
  EXPECT_THAT(none.status().message(), HasSubstr("40 bytes (rank 0)"));
  peaks[3] = {1};
  EXPECT_EQ(PhasesWithin(100, 1, peaks).status().code(), StatusCode::kInvalidArgument);
}

// The smallest budget that is named does, and nothing smaller would.
TEST(PhasesWithin, NamesABudgetThatHoldsForAllRanks) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto catalog = vps::testing::RandomCatalog(&random, 0);
    const auto map = [&] {
      return *LayoutShardMap::Make(catalog, vps::testing::RandomLayout(&random, *catalog, 0));
    };
    const auto from = map();
    const auto to = map();
    const auto ranks = testing::UnionOfRanks(*from, *to);
    const CompileOptions options{.mode = Mode::kStream, .window = 2, .granule_bytes = 4096};
    std::map<RankId, std::vector<ByteCount>> peaks;
    for (const RankId rank : ranks) {
      const auto route = planner::PlanRoute(*from, *to, {}, rank);
      const auto of_rank = PeaksByPhases(*route, *from, *to, {}, ranks, options);
      ASSERT_TRUE(of_rank.ok()) << of_rank.status().ToString();
      peaks[rank] = *of_rank;
    }
    const auto none = PhasesWithin(-1, 1, peaks);
    if (none.ok()) continue;  // a switch without extra memory
    const std::string& message = none.status().message();
    const ByteCount least = std::stoll(message.substr(message.find("would do is ") + 12));
    const auto phases = PhasesWithin(least, 1, peaks);
    ASSERT_TRUE(phases.ok()) << message;
    EXPECT_FALSE(PhasesWithin(least - 1, 1, peaks).ok());
    CompileOptions with = options;
    with.phases = *phases;
    for (const Program& program : testing::CompileAll(*from, *to, {}, ranks, with))
      EXPECT_LE(program.stats.peak_extra_bytes, least) << "rank " << program.rank;
  }
}

}  // namespace
}  // namespace dynatrain::engine
