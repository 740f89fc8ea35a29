// The order of a program: which pairs meet in which round, and what a rank does one after the
// other. The executor, the checker and the simulator all follow ActionsOf.
#ifndef DYNATRAIN_ENGINE_ORDER_H_
#define DYNATRAIN_ENGINE_ORDER_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "dynatrain/engine/program.h"

namespace dynatrain::engine {

// The round in which participants `a` and `b` of `n` meet. In one round each participant meets at
// most one other. XOR for a power of two (rounds 1 .. n-1), else the circle method (0 .. n-1; an
// odd n sits one out per round).
int32_t RoundOf(int32_t a, int32_t b, int32_t n);
int32_t NumRounds(int32_t n);  // all rounds are below it

// The rounds of ranks on nodes, in two levels: first each node by itself, then node meets node in
// node rounds, and inside a node round rank meets rank in local rounds. Nodes count the ranks that
// take part; smaller ones are padded to the largest, whose size is the number of local rounds. So
// at any time a node exchanges with one other node. What is relayed goes inside each node once more,
// after all that. Immutable.
class RoundTable {
 public:
  RoundTable(std::vector<RankId> ranks, const planner::Topology& topology);  // ranks ascend
  // Symmetric. kInvalidArgument if a rank does not take part.
  Result<int32_t> RoundOf(RankId a, RankId b) const;
  // Of two ranks of one node, for what they relay; above all of RoundOf. kInvalidArgument if they
  // are on two nodes.
  Result<int32_t> RelayRoundOf(RankId a, RankId b) const;
  int32_t num_rounds() const {
    return (num_nodes_ + 2) * largest_node_;
  }  // all rounds are below it

 private:
  struct Place {
    int32_t node = 0;   // counts nodes with ranks that take part
    int32_t local = 0;  // counts such ranks of the node
  };
  Result<Place> PlaceOf(RankId rank) const;

  std::vector<RankId> ranks_;
  std::vector<Place> places_;
  int32_t num_nodes_ = 0;
  int32_t largest_node_ = 0;
};

// What goes over the wire for one message besides its data.
enum class Wire : uint32_t { kData = 0, kHashes = 1, kAcknowledgement = 2 };
// The tag of message.tag's companion.
inline transport::Tag TagOf(const Message& message, Wire wire) {
  return message.tag + static_cast<transport::Tag>(wire);
}
inline constexpr transport::Tag kTagsPerMessage = 4;
// Tags of programs are below. Where phases and rounds need more, later phases use them again: both
// ends of a pair post its messages in the same order, so equal tags match.
inline constexpr transport::Tag kTagsOfPrograms = transport::kTagLimit / 16 * 15;

struct Action {
  enum class Kind : uint8_t {
    kTake,              // kStream: drop old memory that nobody needs, take new memory
    kPostReceive,       // message `index` of phase.receives
    kPostSend,          // pack and post message `index` of phase.sends
    kCopies,            // all local copies of the phase
    kFinishReceive,     // wait for it, unpack
    kFinishSend,        // wait for it
    kReceived,          // everything of the phase is received and checked
    kPostAckSend,       // kStream: acknowledge message `index` of phase.receives
    kPostAckReceive,    // kStream: of message `index` of phase.sends
    kFinishAckSend,     // wait for it
    kFinishAckReceive,  // wait for it
    kRelease            // kStream: give back old memory that the phase was the last to need
  };
  Kind kind;
  int32_t phase;
  int32_t index;
  int32_t slot;  // of staging memory: messages with equal slot and direction never overlap in time
};

// What an action does on the wire; none for local ones.
struct WireOp {
  const Message* message;  // whose data, or whose acknowledgement
  bool sending;            // this rank's side
  bool finishes;           // waits for what was posted before
  transport::Tag tag;
};
std::optional<WireOp> WireOpOf(const Program& program, const Action& action);

// Names one transfer among all of a switch, the same at both ends. Tags alone repeat.
struct WireKey {
  RankId from;
  RankId to;
  int32_t phase;
  transport::Tag tag;
  friend auto operator<=>(const WireKey&, const WireKey&) = default;
};
WireKey KeyOf(RankId rank, const Action& action, const WireOp& op);

// One rank's actions in order. At most program.window messages per direction are between post and
// finish; a message waits for none that has a larger (phase, round); what is relayed is sent once
// all messages before it are finished; the acknowledgements of a
// phase come after all its messages, by round. In mode kKeep the phases run into each other; in
// mode kStream a phase begins when the one before is acknowledged.
std::vector<Action> ActionsOf(const Program& program);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_ORDER_H_
