// From transfers to messages: one per peer, direction and phase.
#ifndef DYNATRAIN_ENGINE_MESSAGES_H_
#define DYNATRAIN_ENGINE_MESSAGES_H_

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "dynatrain/engine/order.h"
#include "dynatrain/engine/program.h"

namespace dynatrain::engine {

inline std::span<const Fragment> FragmentsOf(const Message& message, const Run& run) {
  return std::span(message.fragments)
      .subspan(static_cast<size_t>(run.first), static_cast<size_t>(run.count));
}

// What one direction and phase transfers: at first hand, and inside a node at second hand.
struct PhaseTransfers {
  std::vector<planner::Transfer> direct;
  std::vector<planner::Transfer> relayed;
};

// The messages of one direction and phase, by round. `program` has its shards and buffers already.
// Fragments go kind by kind, so that what lies together in flat buffers travels together.
Result<std::vector<Message>> BuildMessages(const Program& program, const vps::StateCatalog& catalog,
                                           int32_t phase, const PhaseTransfers& transfers,
                                           const RoundTable& rounds, bool sending);

// The most memory that any one message of a slot needs.
struct SlotNeeds {
  ByteCount staging_bytes = 0;    // for its runs that are not in place
  ByteCount transport_bytes = 0;  // of the transport, see CompileOptions
};

// By (sending, slot): messages of one slot are never in flight together.
std::map<std::pair<bool, int32_t>, SlotNeeds> SlotsOf(const Program& program,
                                                      ByteCount transport_bytes);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_MESSAGES_H_
