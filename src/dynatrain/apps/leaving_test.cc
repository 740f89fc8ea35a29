#include "dynatrain/apps/leaving.h"

#include <signal.h>

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/apps/testing_clock.h"

namespace dynatrain::apps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LeavingTest : public ::testing::Test {
 protected:
  std::vector<RankId> Late(const std::vector<RankId>& running,
                           const std::map<RankId, int>& stopped) const {
    std::vector<RankId> ranks;
    for (const Leaving::Late& late : leaving.LateOnes(running, stopped)) ranks.push_back(late.rank);
    return ranks;
  }

  ManualClock clock;
  Leaving leaving{&clock};
};

TEST_F(LeavingTest, NobodyIsLateBeforeOneHasLeft) {
  clock.now += seconds(1000);
  EXPECT_EQ(Late({0, 1}, {{1, SIGSTOP}}), std::vector<RankId>());
  leaving.OneLeft();
  EXPECT_EQ(Late({0, 1}, {{1, SIGSTOP}}), std::vector<RankId>());
}

TEST_F(LeavingTest, TimeRunsFromTheFirstThatLeft) {
  leaving.OneLeft();
  clock.now += seconds(5);
  leaving.OneLeft();
  EXPECT_EQ(Late({1, 2, 3}, {{2, SIGSTOP}}), std::vector<RankId>());
  clock.now += milliseconds(1);
  EXPECT_EQ(Late({1, 2, 3}, {{2, SIGSTOP}}), std::vector<RankId>({2}));
  EXPECT_EQ(Late({1, 2, 3}, {}), std::vector<RankId>()) << "it was continued";
  clock.now += seconds(25);
  EXPECT_EQ(Late({1, 3}, {}), std::vector<RankId>({1, 3}));
}

TEST_F(LeavingTest, TheSignalAndTheTimeAreTold) {
  leaving.OneLeft();
  clock.now += seconds(31);
  const auto late = leaving.LateOnes({1, 2}, {{2, SIGTSTP}});
  ASSERT_EQ(late.size(), 2U);
  EXPECT_EQ(late[0].why, "rank 1 did not end within 30 s of the end of the job");
  EXPECT_THAT(late[1].why, AllOf(HasSubstr("rank 2 was stopped by signal 20"), HasSubstr("5 s")));
}

}  // namespace
}  // namespace dynatrain::apps
