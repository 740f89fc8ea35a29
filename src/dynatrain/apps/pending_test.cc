#include "dynatrain/apps/pending.h"

#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dynatrain/apps/testing_clock.h"

namespace dynatrain::apps {
namespace {

using elastic::PendingSwitch;
using elastic::SwitchStage;
using nlohmann::json;
using std::chrono::seconds;

PendingSwitch Pending(int64_t id, SwitchStage stage, std::vector<RankId> waiting_for) {
  return {{id, "tp=2", 30}, {stage, std::move(waiting_for)}};
}

class PendingWatchTest : public ::testing::Test {
 protected:
  // The seconds at which a look each second has something to tell, `pending` being there meanwhile.
  std::vector<double> Told(int64_t looks, const std::vector<PendingSwitch>& pending) {
    std::vector<double> told;
    for (int64_t i = 0; i < looks; ++i, clock.now += seconds(1)) {
      if (const auto notice = watch.Look(pending)) told.push_back(notice->seconds);
    }
    return told;
  }

  ManualClock clock;
  PendingWatch watch{&clock};
};

TEST_F(PendingWatchTest, WhatLastsIsToldAndMoreAndMoreSeldom) {
  EXPECT_EQ(Told(50, {Pending(1, SwitchStage::kPreparing, {3})}),
            (std::vector<double>{5, 10, 20, 40}));
}

TEST_F(PendingWatchTest, AnyProgressBeginsAnew) {
  for (const auto& next :
       {Pending(1, SwitchStage::kPreparing, {1, 3}), Pending(1, SwitchStage::kPreparing, {3}),
        Pending(1, SwitchStage::kMoving, {3}), Pending(2, SwitchStage::kMoving, {3})}) {
    EXPECT_EQ(Told(5, {next}), std::vector<double>{});
  }
  EXPECT_EQ(Told(5, {}), std::vector<double>{});
  EXPECT_EQ(Told(6, {Pending(2, SwitchStage::kMoving, {3})}), std::vector<double>{5});
}

TEST_F(PendingWatchTest, OnlyWhatWaitsForARankIsTold) {
  EXPECT_EQ(Told(20, {Pending(1, SwitchStage::kDecided, {}), Pending(2, SwitchStage::kPrepared, {}),
                      Pending(3, SwitchStage::kQueued, {})}),
            std::vector<double>{});
  EXPECT_EQ(
      Told(6, {Pending(1, SwitchStage::kDecided, {}), Pending(2, SwitchStage::kPreparing, {0, 2}),
               Pending(3, SwitchStage::kQueued, {})}),
      std::vector<double>{5});
}

TEST(PendingNotice, NamesTheRanksAndThoseThatASignalStopped) {
  const PendingWatch::Notice notice{Pending(4, SwitchStage::kPreparing, {1, 3}), 5.1};
  const std::map<RankId, int> stopped = {{2, SIGSTOP}, {3, SIGSTOP}};
  EXPECT_EQ(notice.ToText(stopped),
            "switch 4 to tp=2: preparing, waits for ranks 1, 3; no answer for 5 s; rank 3 was "
            "stopped by signal 19 (Stopped (signal)); it is called off after 360 s at most");
  EXPECT_EQ(notice.ToJson(stopped), json::parse(R"({"id": 4, "to": "tp=2", "requested_step": 30,
      "stage": "preparing", "waiting_for": [1, 3], "seconds": 5.1, "stopped": [3]})"));
  const PendingWatch::Notice moving{Pending(4, SwitchStage::kMoving, {1}), 20};
  EXPECT_EQ(moving.ToText({}), "switch 4 to tp=2: moving, waits for rank 1; no answer for 20 s");
}

}  // namespace
}  // namespace dynatrain::apps
