#include "dynatrain/engine/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::engine {
namespace {

using ::testing::HasSubstr;
using vps::LayoutShardMap;

TEST(Granularities, PhasesAscendAndThenGranulesAreCut) {
  CompileOptions options{.mode = Mode::kStream};
  const auto list = Granularities(options);
  ASSERT_EQ(list.size() % 2, 0U);
  const size_t half = list.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    EXPECT_EQ(list[i].granule_bytes, 2 << 20);
    EXPECT_EQ(list[i + half].granule_bytes, 64 << 10);
    EXPECT_EQ(list[i + half].phases, list[i].phases);
    EXPECT_TRUE(i == 0 || list[i].phases > list[i - 1].phases);
  }
  EXPECT_EQ(list.front().phases, 1);
  EXPECT_EQ(list.back().phases, 1024);
  options.mode = Mode::kKeep;  // nothing goes back granule by granule
  EXPECT_EQ(Granularities(options).size(), half);
  options = {.mode = Mode::kStream, .granule_bytes = 8192};  // a 32nd is no page
  EXPECT_EQ(Granularities(options).size(), half);
}

TEST(GranularityWithin, TakesTheFirstWithWhichAllFitOrNamesTheSmallestBudget) {
  CompileOptions options{.mode = Mode::kStream};
  const size_t count = Granularities(options).size();
  std::map<RankId, std::vector<ByteCount>> peaks;
  peaks[0] = std::vector<ByteCount>(count, 50);
  peaks[7] = std::vector<ByteCount>(count, 90);
  peaks[0][2] = 40;  // 3 phases
  peaks[7][2] = 30;
  peaks[7][3] = 10;              // 4 phases
  peaks[0][count / 2 + 1] = 20;  // 2 phases, small granules
  peaks[7][count / 2 + 1] = 25;
  const auto within = [&](ByteCount budget) { return GranularityWithin(budget, options, peaks); };
  const auto large = [](int32_t phases) { return Granularity{phases, 2 << 20}; };
  EXPECT_EQ(*within(100), large(1));
  EXPECT_EQ(*within(90), large(1));
  EXPECT_EQ(*within(89), large(3));
  EXPECT_EQ(*within(40), large(3));
  EXPECT_EQ(*within(39), (Granularity{2, 64 << 10}));
  EXPECT_EQ(*within(25), (Granularity{2, 64 << 10}));
  const auto none = within(24);
  ASSERT_EQ(none.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(none.status().message(), HasSubstr("24 bytes"));
  EXPECT_THAT(none.status().message(), HasSubstr("25 bytes (rank 7)"));
  options.phases = 4;
  EXPECT_EQ(*within(89), large(4));
  peaks[3] = {1};
  EXPECT_EQ(within(100).status().code(), StatusCode::kInvalidArgument);
}

// The smallest budget that is named does, and nothing smaller would.
TEST(GranularityWithin, NamesABudgetThatHoldsForAllRanks) {
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
    const CompileOptions options{.mode = Mode::kStream, .window = 2, .granule_bytes = 131072};
    std::map<RankId, std::vector<ByteCount>> peaks;
    for (const RankId rank : ranks) {
      const auto route = planner::PlanRoute(*from, *to, {}, rank);
      const auto of_rank = PeaksByGranularity(*route, *from, *to, {}, ranks, options);
      ASSERT_TRUE(of_rank.ok()) << of_rank.status().ToString();
      peaks[rank] = *of_rank;
    }
    const auto none = GranularityWithin(-1, options, peaks);
    if (none.ok()) continue;  // a switch without extra memory
    const std::string& message = none.status().message();
    const ByteCount least = std::stoll(message.substr(message.find("would do is ") + 12));
    const auto granularity = GranularityWithin(least, options, peaks);
    ASSERT_TRUE(granularity.ok()) << message;
    EXPECT_FALSE(GranularityWithin(least - 1, options, peaks).ok());
    CompileOptions with = options;
    granularity->ApplyTo(&with);
    for (const Program& program : testing::CompileAll(*from, *to, {}, ranks, with))
      EXPECT_LE(program.stats.peak_extra_bytes, least) << "rank " << program.rank;
  }
}

}  // namespace
}  // namespace dynatrain::engine
