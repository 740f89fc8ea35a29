#include "dynatrain/elastic/switch_progress.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dynatrain/elastic/memory_store.h"
#include "dynatrain/elastic/switch.h"

namespace dynatrain::elastic {
namespace {

class SwitchProgressTest : public ::testing::Test {
 protected:
  void Write(const std::string& key) { ASSERT_TRUE(store.Set(key, "x").ok()); }
  void Vote(std::string_view name, RankId rank) { Write(SwitchKey(7, name, rank)); }
  // "preparing 1 3"
  static std::string Text(const SwitchProgress& progress) {
    std::string text(SwitchStageName(progress.stage));
    for (const RankId rank : progress.waiting_for) text += " " + std::to_string(rank);
    return text;
  }
  std::string Progress() {
    const Result<SwitchProgress> progress = ReadProgress(store, 7, {0, 1, 3});
    return progress.ok() ? Text(*progress) : progress.status().ToString();
  }
  // "preparing 1 3; queued" of these switches, ids from 7.
  std::string Pending(const std::string& layout, const std::vector<std::string>& specs) {
    std::vector<SwitchRequest> requests;
    for (const std::string& spec : specs)
      requests.push_back({7 + static_cast<int64_t>(requests.size()), spec, 0});
    const auto pending = ReadPending(store, layout, requests);
    if (!pending.ok()) return pending.status().ToString();
    std::string text;
    for (const PendingSwitch& next : *pending) {
      text += (text.empty() ? "" : "; ") + Text(next.progress);
      EXPECT_EQ(next.request.spec, specs[static_cast<size_t>(next.request.id - 7)]);
    }
    return text;
  }

  MemoryStore store;
};

TEST_F(SwitchProgressTest, EachStageNamesTheRanksWhoseVoteIsMissing) {
  Write(SwitchKey(7, "request"));
  EXPECT_EQ(Progress(), "preparing 0 1 3");
  Vote("planned", 0);
  Vote("planned", 1);
  EXPECT_EQ(Progress(), "preparing 3");
  Vote("planned", 3);
  EXPECT_EQ(Progress(), "preparing 0 1 3");
  Vote("prepared", 3);
  EXPECT_EQ(Progress(), "preparing 0 1");
  Vote("prepared", 0);
  Vote("prepared", 1);
  EXPECT_EQ(Progress(), "prepared");
  Write(SwitchKey(7, "move_before"));
  Vote("verified", 0);
  EXPECT_EQ(Progress(), "moving 1 3");
  Write(SwitchKey(7, "decision"));
  EXPECT_EQ(Progress(), "decided");
}

TEST_F(SwitchProgressTest, WithABudgetMemoryNeedsComeFirst) {
  Vote("fits", 0);
  Vote("fits", 1);
  EXPECT_EQ(Progress(), "preparing 3");
  Vote("fits", 3);
  EXPECT_EQ(Progress(), "preparing 0 1 3");
  Vote("planned", 3);
  EXPECT_EQ(Progress(), "preparing 0 1");
}

TEST_F(SwitchProgressTest, OtherSwitchesAndRanksDoNotCount) {
  Write(SwitchKey(6, "decision"));
  Write(SwitchKey(6, "planned", 0));
  Vote("planned", 2);
  EXPECT_EQ(Progress(), "preparing 0 1 3");
}

TEST_F(SwitchProgressTest, SwitchesTakeTurns) {
  EXPECT_EQ(Pending("dp=1", {}), "");
  EXPECT_EQ(Pending("dp=1,ranks=2", {"tp=2,ranks=3+0", "dp=1"}), "preparing 0 2 3; queued");
  Write(SwitchKey(7, "decision"));  // an abort: the old layout stays
  EXPECT_EQ(Pending("dp=1,ranks=2", {"tp=2,ranks=3+0", "dp=1", "dp=2"}),
            "decided; preparing 0 2; queued");
  ASSERT_TRUE(store.Set(SwitchKey(7, "decision"), Decision{true, ""}.ToText()).ok());
  EXPECT_EQ(Pending("dp=1,ranks=2", {"tp=2,ranks=3+0", "dp=1"}), "decided; preparing 0 3");
  EXPECT_EQ(Pending("dp=2", {"tp=2", "nonsense"}), "decided; preparing 0 1");
}

TEST_F(SwitchProgressTest, ALostStoreIsAnError) {
  store.Disconnect();
  EXPECT_EQ(ReadProgress(store, 7, {0}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(MissingVotes(store, 7, "planned", {0}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(ReadPending(store, "dp=1", {{7, "dp=2", 0}}).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace dynatrain::elastic
