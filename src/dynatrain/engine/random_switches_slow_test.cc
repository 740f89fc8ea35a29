// Many more random switches than random_switches_test.cc.
#include <gtest/gtest.h>

#include "dynatrain/engine/random_switches.h"

namespace dynatrain::engine::testing {
namespace {

TEST(RandomSwitches, ManyAreExactAndStayWithinTheirBudgets) {
  RandomSwitchCounts counts;
  for (uint64_t seed = 1001; seed <= 1400 && !::testing::Test::HasFailure(); ++seed)
    CheckRandomSwitch(seed, /*run=*/true, &counts);
  EXPECT_GT(counts.relayed, 20);
  for (size_t ranks = 1; ranks <= 17; ++ranks)
    EXPECT_TRUE(counts.ranks.contains(ranks)) << "none of " << ranks << " ranks";
}

}  // namespace
}  // namespace dynatrain::engine::testing
