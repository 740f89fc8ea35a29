#include "dynatrain/engine/messages.h"

#include <algorithm>

#include "dynatrain/engine/copy.h"

namespace dynatrain::engine {
namespace {

using planner::Transfer;

class MessageBuilder {
 public:
  MessageBuilder(const Program& program, const RoundTable& rounds, bool sending)
      : program_(program), rounds_(rounds), sending_(sending) {}

  Status Add(const Transfer& transfer, bool relayed) {
    DT_ASSIGN_OR_RETURN(const int32_t round,
                        relayed ? rounds_.RelayRoundOf(program_.rank, transfer.peer)
                                : rounds_.RoundOf(program_.rank, transfer.peer));
    Message& message = by_round_[round];
    message.peer = transfer.peer;
    message.round = round;
    message.relayed = relayed;
    const bool old = sending_ && !relayed;
    DT_ASSIGN_OR_RETURN(const Region region,
                        RegionOf(transfer.piece, old ? program_.old_shards : program_.new_shards,
                                 old ? program_.old_buffers : program_.new_buffers));
    message.bytes += region.bytes();
    message.fragments.push_back({transfer.piece, region});
    return Status::Ok();
  }

  Result<std::vector<Message>> Finish(int32_t phase) {
    std::vector<Message> messages;
    const int64_t rounds = rounds_.num_rounds();
    for (auto& [round, message] : by_round_) {
      const int64_t tag = (phase * rounds + round) * kTagsPerMessage;
      if (tag + kTagsPerMessage > INT32_MAX) {
        return InvalidArgument("{} phases of {} rounds need more tags than 2^31", phase + 1,
                               rounds);
      }
      message.tag = static_cast<transport::Tag>(tag);
      AddRuns(&message);
      messages.push_back(std::move(message));
    }
    return messages;
  }

 private:
  static void AddRuns(Message* message) {
    bool gathers = false;  // the last run
    for (size_t i = 0; i < message->fragments.size(); ++i) {
      const ByteCount bytes = message->fragments[i].region.bytes();
      const bool is_short = bytes < kLongFragmentBytes;
      if (!gathers || !is_short)
        message->runs.push_back({.first = static_cast<int32_t>(i), .count = 0, .bytes = 0});
      ++message->runs.back().count;
      message->runs.back().bytes += bytes;
      gathers = is_short;
    }
    for (Run& run : message->runs) {
      run.in_place = IsOneRun(FragmentsOf(*message, run));
      run.staging_begin = message->staging_bytes;
      if (!run.in_place) message->staging_bytes += run.bytes;
    }
  }

  static bool IsOneRun(std::span<const Fragment> fragments) {
    const Region& first = fragments.front().region;
    int64_t next = first.offset;
    for (const Fragment& fragment : fragments) {
      const Region& region = fragment.region;
      if (region.buffer != first.buffer || region.offset != next || !IsDense(region)) return false;
      next += vps::ElemCount(region.extent);
    }
    return true;
  }

  const Program& program_;
  const RoundTable& rounds_;
  const bool sending_;
  std::map<int32_t, Message> by_round_;
};

}  // namespace

Result<std::vector<Message>> BuildMessages(const Program& program, int32_t phase,
                                           const PhaseTransfers& transfers,
                                           const RoundTable& rounds, bool sending) {
  MessageBuilder builder(program, rounds, sending);
  for (const Transfer& transfer : transfers.direct)
    DT_RETURN_IF_ERROR(builder.Add(transfer, /*relayed=*/false));
  for (const Transfer& transfer : transfers.relayed)
    DT_RETURN_IF_ERROR(builder.Add(transfer, /*relayed=*/true));
  return builder.Finish(phase);
}

std::map<std::pair<bool, int32_t>, ByteCount> StagingSlots(const Program& program) {
  std::map<std::pair<bool, int32_t>, ByteCount> slots;
  for (const Action& action : ActionsOf(program)) {
    if (action.kind != Action::Kind::kPostSend && action.kind != Action::Kind::kPostReceive)
      continue;
    const WireOp op = *WireOpOf(program, action);
    ByteCount& bytes = slots[{op.sending, action.slot}];
    bytes = std::max(bytes, op.message->staging_bytes);
  }
  return slots;
}

}  // namespace dynatrain::engine
