#include "dynatrain/engine/random_switches.h"

#include <gtest/gtest.h>

namespace dynatrain::engine::testing {
namespace {

TEST(RandomSwitches, AreExactAndStayWithinTheirBudgets) {
  RandomSwitchCounts counts;
  for (uint64_t seed = 1; seed <= 32 && !::testing::Test::HasFailure(); ++seed)
    CheckRandomSwitch(seed, /*run=*/seed <= 8, &counts);
  EXPECT_GT(counts.streamed, 5);
  EXPECT_GT(counts.phased, 4);
  EXPECT_GT(counts.relayed, 0);
  EXPECT_GT(counts.uneven, 5);
}

}  // namespace
}  // namespace dynatrain::engine::testing
