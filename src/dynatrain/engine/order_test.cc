#include "dynatrain/engine/order.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace dynatrain::engine {
namespace {

TEST(Order, EveryPairMeetsOnceAndEveryRoundIsAMatching) {
  for (int32_t n = 2; n <= 40; ++n) {
    std::set<std::pair<int32_t, int32_t>> busy;  // (round, participant)
    for (int32_t a = 0; a < n; ++a) {
      for (int32_t b = a + 1; b < n; ++b) {
        const int32_t round = RoundOf(a, b, n);
        EXPECT_EQ(round, RoundOf(b, a, n));
        EXPECT_GE(round, 0);
        EXPECT_LT(round, NumRounds(n));
        EXPECT_TRUE(busy.insert({round, a}).second) << n << ": " << a << " meets two in round " << round;
        EXPECT_TRUE(busy.insert({round, b}).second) << n << ": " << b << " meets two in round " << round;
      }
    }
  }
}

// In one node round a node meets one other node at most, and in each round a rank one other rank.
TEST(Order, TwoLevelRoundsAreMatchingsOfNodesAndOfRanks) {
  for (const std::vector<RankId>& ranks :
       {std::vector<RankId>{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 4, 5, 6, 8, 9, 10}, {0, 3, 4, 9, 10, 11, 12, 13, 20},
        {2, 3, 5, 7, 11, 13, 17, 19, 23, 29}, {5}, {1, 2}}) {
    for (const int32_t per_node : {1, 2, 3, 4, 8, 1 << 20}) {
      const planner::Topology topology{.ranks_per_node = per_node};
      const RoundTable table(ranks, topology);
      std::set<std::pair<int32_t, RankId>> busy;
      std::set<std::tuple<int32_t, int32_t, int32_t>> node_pairs;  // round, node, node it meets
      for (const RankId a : ranks) {
        for (const RankId b : ranks) {
          if (a >= b) continue;
          const int32_t round = *table.RoundOf(a, b);
          EXPECT_EQ(round, *table.RoundOf(b, a));
          EXPECT_GE(round, 0);
          EXPECT_LT(round, table.num_rounds());
          EXPECT_TRUE(busy.insert({round, a}).second);
          EXPECT_TRUE(busy.insert({round, b}).second);
          node_pairs.insert({round, topology.NodeOf(a), topology.NodeOf(b)});
          node_pairs.insert({round, topology.NodeOf(b), topology.NodeOf(a)});
        }
      }
      std::set<std::pair<int32_t, int32_t>> node_busy;
      for (const auto& [round, node, other] : node_pairs) EXPECT_TRUE(node_busy.insert({round, node}).second);
    }
  }
  EXPECT_EQ(RoundTable({0, 1}, {}).RoundOf(0, 2).status().code(), StatusCode::kInvalidArgument);
}

Message Of(int32_t round) { return {round, round, static_cast<transport::Tag>(round * 4), 8, {}, false}; }

TEST(Order, NoMoreThanTheWindowIsInFlightAndSlotsAreFreeWhenUsed) {
  for (int32_t window = 1; window <= 5; ++window) {
    Program program;
    program.window = window;
    Phase phase;
    for (const int32_t round : {1, 2, 4, 7, 8, 9, 11}) phase.receives.push_back(Of(round));
    for (const int32_t round : {2, 3, 4, 5, 8, 10, 11, 12}) phase.sends.push_back(Of(round));
    program.phases = {phase, {}, phase};
    std::set<std::pair<bool, int32_t>> used;  // (sending, slot)
    int posts = 0;
    int finishes = 0;
    int copies = 0;
    for (const Action& action : ActionsOf(program)) {
      const bool sending = action.kind == Action::Kind::kPostSend || action.kind == Action::Kind::kFinishSend;
      switch (action.kind) {
        case Action::Kind::kPostReceive:
        case Action::Kind::kPostSend:
          ++posts;
          EXPECT_LT(action.slot, window);
          EXPECT_TRUE(used.insert({sending, action.slot}).second) << "slot in use";
          break;
        case Action::Kind::kFinishReceive:
        case Action::Kind::kFinishSend:
          ++finishes;
          EXPECT_EQ(used.erase({sending, action.slot}), 1U);
          break;
        case Action::Kind::kCopies:
          ++copies;
          break;
        case Action::Kind::kVerify:
          EXPECT_TRUE(used.empty()) << "verified before everything came";
          break;
        default:
          ADD_FAILURE() << "nothing else happens while the old state is kept";
      }
    }
    EXPECT_EQ(posts, 30);
    EXPECT_EQ(finishes, 30);
    EXPECT_EQ(copies, 3);
  }
}

}  // namespace
}  // namespace dynatrain::engine
