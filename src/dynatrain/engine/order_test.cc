#include "dynatrain/engine/order.h"

#include <gtest/gtest.h>

#include <map>
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
        EXPECT_TRUE(busy.insert({round, a}).second)
            << n << ": " << a << " meets two in round " << round;
        EXPECT_TRUE(busy.insert({round, b}).second)
            << n << ": " << b << " meets two in round " << round;
      }
    }
  }
}

// In one node round a node meets one other node at most, and in each round a rank one other rank.
TEST(Order, TwoLevelRoundsAreMatchingsOfNodesAndOfRanks) {
  for (const std::vector<RankId>& ranks : {std::vector<RankId>{0, 1, 2, 3, 4, 5, 6, 7},
                                           {0, 1, 2, 4, 5, 6, 8, 9, 10},
                                           {0, 3, 4, 9, 10, 11, 12, 13, 20},
                                           {2, 3, 5, 7, 11, 13, 17, 19, 23, 29},
                                           {5},
                                           {1, 2}}) {
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
      for (const auto& [round, node, other] : node_pairs)
        EXPECT_TRUE(node_busy.insert({round, node}).second);
    }
  }
  EXPECT_EQ(RoundTable({0, 1}, {}).RoundOf(0, 2).status().code(), StatusCode::kInvalidArgument);
}

Message Of(int32_t round) {
  Message message{};
  message.peer = round;
  message.round = round;
  message.tag = static_cast<transport::Tag>(round * 4);
  message.bytes = 8;
  return message;
}

// Follows a list of actions: what is in flight, by (sending, slot).
struct Follower {
  std::set<std::pair<bool, int32_t>> used;
  std::map<int32_t, int> unfinished;  // messages of a phase that are not through
  int posts = 0, copies = 0, verified = 0;

  void Follow(const Program& program, const Action& action) {
    if (const auto op = WireOpOf(program, action)) {
      EXPECT_LT(action.slot, program.window);
      if (op->finishes) {
        EXPECT_EQ(used.erase({op->sending, action.slot}), 1U);
        --unfinished[action.phase];
      } else {
        EXPECT_TRUE(used.insert({op->sending, action.slot}).second) << "slot in use";
        ++posts;
        EXPECT_EQ(verified > action.phase, false) << "verified before everything was posted";
      }
    }
    if (action.kind == Action::Kind::kCopies) ++copies;
    if (action.kind == Action::Kind::kReceived) {
      EXPECT_EQ(action.phase, verified++);
      EXPECT_EQ(unfinished[action.phase], 0) << "verified before everything came";
    }
  }
};

TEST(Order, NoMoreThanTheWindowIsInFlightAndSlotsAreFreeWhenUsed) {
  Phase phase;
  for (const int32_t round : {1, 2, 4, 7, 8, 9, 11}) phase.receives.push_back(Of(round));
  for (const int32_t round : {2, 3, 4, 5, 8, 10, 11, 12}) phase.sends.push_back(Of(round));
  for (int32_t window = 1; window <= 20; ++window) {
    Program program;
    program.window = window;
    program.phases = {phase, {}, phase, {}};
    Follower follower;
    for (const int32_t p : {0, 2}) follower.unfinished[p] = 15;
    for (const Action& action : ActionsOf(program)) follower.Follow(program, action);
    EXPECT_TRUE(follower.used.empty());
    EXPECT_EQ(follower.posts, 30);
    EXPECT_EQ(follower.copies, 4);
    EXPECT_EQ(follower.verified, 4);
  }
}

// A streamed phase takes, moves, verifies, acknowledges and releases, and only then the next one
// begins.
TEST(Order, StreamedPhasesDoNotOverlap) {
  Phase phase;
  for (const int32_t round : {1, 2}) phase.receives.push_back(Of(round));
  phase.sends.push_back(Of(2));
  Program program;
  program.mode = Mode::kStream;
  program.phases = {phase, phase};
  using Kind = Action::Kind;
  std::vector<Kind> kinds;
  int32_t last = 0;
  for (const Action& action : ActionsOf(program)) {
    EXPECT_GE(action.phase, last);
    last = action.phase;
    if (action.phase == 0) kinds.push_back(action.kind);
  }
  EXPECT_EQ(kinds,
            (std::vector<Kind>{Kind::kTake, Kind::kPostReceive, Kind::kPostReceive, Kind::kPostSend,
                               Kind::kCopies, Kind::kFinishReceive, Kind::kFinishReceive,
                               Kind::kFinishSend, Kind::kReceived, Kind::kPostAckSend,
                               Kind::kPostAckReceive, Kind::kPostAckSend, Kind::kFinishAckSend,
                               Kind::kFinishAckReceive, Kind::kFinishAckSend, Kind::kRelease}));
}

}  // namespace
}  // namespace dynatrain::engine
