#include "dynatrain/apps/blame.h"

#include <signal.h>

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/apps/testing_clock.h"

namespace dynatrain::apps {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Duration kStep = milliseconds(100);
constexpr char kTimedOut[] = "deadline exceeded: all-reduce: timed out waiting 3000ms";

Children::Exit ExitedWith(RankId rank, int code) { return {rank, 1000 + rank, code << 8}; }
Children::Exit KilledBy(RankId rank, int signal) { return {rank, 1000 + rank, signal}; }

class BlameTest : public ::testing::Test {
 protected:
  std::string Verdict(const std::map<RankId, int>& stopped = {}) {
    return blame.Verdict({0, 1, 2, 3}, stopped).ToString();
  }

  ManualClock clock;
  Blame blame{&clock};
};

TEST_F(BlameTest, AKilledRankExplainsAllErrors) {
  blame.AddError(0, "unavailable: connection closed by peer");
  blame.AddError(1, kTimedOut);
  blame.AddExit(KilledBy(2, SIGKILL));
  EXPECT_THAT(Verdict(), AllOf(HasSubstr("rank 2 "), HasSubstr("signal 9"),
                               Not(HasSubstr("rank 0")), Not(HasSubstr("rank 1"))));
}

TEST_F(BlameTest, TheOneThatSaidNothingAfterADeadlineIsNamed) {
  blame.AddError(1, "unavailable: connection closed by peer");
  blame.AddExit(ExitedWith(1, 1));
  blame.AddError(0, kTimedOut);
  blame.AddError(3, kTimedOut);
  EXPECT_THAT(Verdict(), AllOf(HasSubstr("rank 0: "), HasSubstr("no word from rank 2")));
}

TEST_F(BlameTest, OfSeveralSilentRanksOnlyTheStoppedOneIsBlamed) {
  blame.AddError(0, kTimedOut);
  EXPECT_THAT(Verdict({{2, SIGSTOP}}),
              AllOf(HasSubstr("rank 2 was stopped by signal 19"), Not(HasSubstr("no word")),
                    Not(HasSubstr("rank 1")), Not(HasSubstr("rank 3"))));
}

TEST_F(BlameTest, SeveralSilentRanksAreNotAllCalledStuck) {
  blame.AddError(0, kTimedOut);
  blame.AddError(3, kTimedOut);
  EXPECT_THAT(Verdict(), HasSubstr("no word from ranks 1, 2: each is stuck, or waits for one"));
}

TEST_F(BlameTest, AStoppedRankThatDoesNotTrainIsNotBlamed) {
  blame.AddError(0, kTimedOut);
  EXPECT_THAT(blame.Verdict({0, 1}, {{3, SIGSTOP}}).ToString(), HasSubstr("no word from rank 1"));
}

TEST_F(BlameTest, AFailureIsSettledAfterAMoment) {
  EXPECT_FALSE(blame.Settled(kStep));
  blame.AddError(0, "unavailable: connection closed by peer");
  EXPECT_FALSE(blame.Settled(kStep));
  clock.now += milliseconds(701);
  EXPECT_TRUE(blame.Settled(kStep));
  EXPECT_TRUE(blame.Settled(milliseconds(5000)));
}

TEST_F(BlameTest, AfterADeadlineTheOthersHaveTimeToReachTheirs) {
  blame.AddError(0, kTimedOut);
  clock.now += milliseconds(9999);
  EXPECT_TRUE(blame.Settled(kStep));
  EXPECT_FALSE(blame.Settled(milliseconds(5000)));
  EXPECT_FALSE(blame.Settled(milliseconds(3600'000)));
  clock.now += milliseconds(2);
  EXPECT_TRUE(blame.Settled(milliseconds(3600'000)));
  blame.AddExit(KilledBy(2, SIGKILL));
  EXPECT_TRUE(blame.Settled(milliseconds(3600'000)));
}

}  // namespace
}  // namespace dynatrain::apps
