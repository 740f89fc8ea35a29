#include "dynatrain/elastic/groups.h"

#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "dynatrain/base/random.h"
#include "dynatrain/elastic/local_groups.h"

namespace dynatrain::elastic {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

vps::Layout MustParse(const std::string& spec) {
  auto layout = vps::ParseLayout(spec);
  EXPECT_TRUE(layout.ok()) << layout.status().ToString();
  return *layout;
}

TEST(GroupsOf, ListsLinesOfEachAxisInGroupRankOrder) {
  const auto groups = GroupsOf(MustParse("tp=2,pp=2,dp=2,ranks=7+6+5+4+3+2+1+0"));
  const std::vector<GroupSpec> expected = {
      {"world", "world.0", {7, 6, 5, 4, 3, 2, 1, 0}},
      {"tp", "tp.0", {7, 6}},
      {"tp", "tp.1", {5, 4}},
      {"tp", "tp.2", {3, 2}},
      {"tp", "tp.3", {1, 0}},
      {"dp", "dp.0", {7, 5}},
      {"dp", "dp.1", {6, 4}},
      {"dp", "dp.2", {3, 1}},
      {"dp", "dp.3", {2, 0}},
      {"pp", "pp.0", {7, 3}},
      {"pp", "pp.1", {6, 2}},
      {"pp", "pp.2", {5, 1}},
      {"pp", "pp.3", {4, 0}},
      {"embedding", "embedding.0", {7, 3}},
      {"embedding", "embedding.1", {6, 2}},
      {"embedding", "embedding.2", {5, 1}},
      {"embedding", "embedding.3", {4, 0}},
  };
  EXPECT_EQ(groups, expected);
}

TEST(GroupsOf, LeavesGroupsOfOneOutExceptTheWorld) {
  EXPECT_EQ(GroupsOf(MustParse("dp=1,ranks=3")),
            (std::vector<GroupSpec>{{"world", "world.0", {3}}}));
  EXPECT_EQ(GroupsOfRank(MustParse("pp=3,dp=1"), 1),
            (std::vector<GroupSpec>{{"world", "world.0", {0, 1, 2}}, {"pp", "pp.0", {0, 1, 2}}}));
  EXPECT_TRUE(GroupsOfRank(MustParse("dp=2"), 5).empty());
}

// C24: every rank builds its own groups, one after the other, each group only when all its members
// are at it.
TEST(GroupsOf, OrderNeverMakesARingOfWaits) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    vps::Layout layout;
    layout.tp = static_cast<int32_t>(random.Between(1, 4));
    layout.pp = static_cast<int32_t>(random.Between(1, 4));
    layout.dp = static_cast<int32_t>(random.Between(1, 4));
    const char* orders[] = {"tp-dp-pp", "dp-tp-pp", "pp-dp-tp", "tp-pp-dp"};
    layout.order = orders[random.Between(0, 3)];
    std::map<RankId, std::vector<GroupSpec>> todo;
    for (const RankId rank : layout.Ranks()) todo[rank] = GroupsOfRank(layout, rank);
    bool progress = true;
    while (progress) {
      progress = false;
      for (const GroupSpec& spec : GroupsOf(layout)) {
        bool all_there = true;
        for (const RankId rank : spec.ranks) {
          all_there = all_there && !todo[rank].empty() && todo[rank].front() == spec;
        }
        if (!all_there) continue;
        for (const RankId rank : spec.ranks) todo[rank].erase(todo[rank].begin());
        progress = true;
      }
    }
    for (const auto& [rank, left] : todo) {
      EXPECT_TRUE(left.empty()) << "seed " << seed << ": " << layout.ToString() << ": rank " << rank
                                << " waits in " << left.front().name;
    }
  }
}

TEST(LocalGroups, AMissingMemberIsNamed) {
  LocalGroupHub hub;
  const auto factory = hub.FactoryOf(0);
  const auto group = factory->MakeGroup("e1", {"dp", "dp.0", {0, 4}}, milliseconds(20));
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(group.status().message().find("dp.0: ranks 4"), std::string::npos)
      << group.status().message();
}

// C23: generations have key spaces of their own; a name does not come again.
TEST(LocalGroups, NamesNeverRepeat) {
  LocalGroupHub hub;
  const auto zero = hub.FactoryOf(0);
  const auto one = hub.FactoryOf(1);
  for (const std::string epoch : {"e1", "e2", "e3"}) {
    std::thread other(
        [&] { EXPECT_TRUE(one->MakeGroup(epoch, {"dp", "dp.0", {0, 1}}, seconds(30)).ok()); });
    EXPECT_TRUE(zero->MakeGroup(epoch, {"dp", "dp.0", {0, 1}}, seconds(30)).ok());
    other.join();
  }
  EXPECT_EQ(hub.live_groups(), 0);
  EXPECT_EQ(zero->MakeGroup("e2", {"dp", "dp.0", {0, 1}}, seconds(30)).status().code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace dynatrain::elastic
