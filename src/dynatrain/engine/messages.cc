#include "dynatrain/engine/messages.h"

#include <algorithm>

#include "dynatrain/engine/copy.h"

namespace dynatrain::engine {
namespace {

using planner::Transfer;
using vps::Buffer;
using vps::Shard;

class MessageBuilder {
 public:
  MessageBuilder(const Program& program, const RoundTable& rounds, bool sending)
      : shards_(sending ? program.old_shards : program.new_shards),
        buffers_(sending ? program.old_buffers : program.new_buffers),
        rounds_(rounds),
        rank_(program.rank) {}

  Status Add(const Transfer& transfer) {
    DT_ASSIGN_OR_RETURN(const int32_t round, rounds_.RoundOf(rank_, transfer.peer));
    Message& message = by_round_[round];
    message.peer = transfer.peer;
    message.round = round;
    DT_ASSIGN_OR_RETURN(const Region region, RegionOf(transfer.piece, shards_, buffers_));
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
      message.in_place = IsOneRun(message.fragments);
      messages.push_back(std::move(message));
    }
    return messages;
  }

 private:
  static bool IsOneRun(const std::vector<Fragment>& fragments) {
    const Region& first = fragments.front().region;
    int64_t next = first.offset;
    for (const Fragment& fragment : fragments) {
      const Region& region = fragment.region;
      if (region.buffer != first.buffer || region.offset != next || !IsDense(region)) return false;
      next += vps::ElemCount(region.extent);
    }
    return true;
  }

  const std::vector<Shard>& shards_;
  const std::vector<Buffer>& buffers_;
  const RoundTable& rounds_;
  const RankId rank_;
  std::map<int32_t, Message> by_round_;
};

}  // namespace

Result<std::vector<Message>> BuildMessages(const Program& program, int32_t phase,
                                           const std::vector<Transfer>& transfers,
                                           const RoundTable& rounds, bool sending) {
  MessageBuilder builder(program, rounds, sending);
  for (const Transfer& transfer : transfers) DT_RETURN_IF_ERROR(builder.Add(transfer));
  return builder.Finish(phase);
}

std::map<std::pair<bool, int32_t>, ByteCount> StagingSlots(const Program& program) {
  std::map<std::pair<bool, int32_t>, ByteCount> slots;
  for (const Action& action : ActionsOf(program)) {
    if (action.kind != Action::Kind::kPostSend && action.kind != Action::Kind::kPostReceive)
      continue;
    const WireOp op = *WireOpOf(program, action);
    ByteCount& bytes = slots[{op.sending, action.slot}];
    if (!op.message->in_place) bytes = std::max(bytes, op.message->bytes);
  }
  return slots;
}

}  // namespace dynatrain::engine
