// Inside of Staging: memory for messages that are not sent from or received into state buffers, and
// for hashes.
#ifndef DYNATRAIN_ENGINE_STAGING_H_
#define DYNATRAIN_ENGINE_STAGING_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "dynatrain/engine/executor.h"
#include "dynatrain/engine/order.h"
#include "dynatrain/engine/storage.h"

namespace dynatrain::engine {

// Where the checks of one message look: a region for each fragment, found from the shard maps and
// not from the fragments.
struct MessageCheck {
  std::vector<Region> regions;
  std::vector<uint64_t> hashes;  // as sent over the wire
  std::vector<uint64_t> found;   // of what was received
};

// What a program and the checks and actions of its execution take beside state and messages.
ByteCount BookkeepingBytes(const Program& program);

class StagingMemory final : public Staging {
 public:
  static Result<std::unique_ptr<StagingMemory>> Make(const Program& program, Verify verify);

  bool checks() const { return checks_; }
  const std::vector<Action>& actions() const { return actions_; }
  // The memory of a message that is not in place.
  ByteSpan SlotFor(const Action& action, bool sending, ByteCount bytes) const;
  // What an acknowledgement says, by slot: sent and received.
  struct Acknowledgement {
    uint64_t sent = 0;
    uint64_t received = 0;
  };
  Acknowledgement& AcknowledgementOf(const Action& action) {
    return acknowledgements_[static_cast<size_t>(action.slot)];
  }
  // Precondition: checks().
  MessageCheck& CheckOf(int32_t phase, int32_t index, bool sending) {
    return (sending ? send_checks_
                    : receive_checks_)[static_cast<size_t>(phase)][static_cast<size_t>(index)];
  }

 private:
  using Checks = std::vector<std::vector<MessageCheck>>;  // by phase and message
  Status MakeSlots(const Program& program);
  static Status MakeChecks(const Program& program, const std::vector<Message>& messages,
                           bool sending, std::vector<MessageCheck>* checks);

  bool checks_ = false;
  std::vector<Action> actions_;
  std::map<std::pair<bool, int32_t>, std::shared_ptr<Storage>> slots_;  // by (sending, slot)
  std::vector<Acknowledgement> acknowledgements_;
  Checks receive_checks_;
  Checks send_checks_;
};

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_STAGING_H_
