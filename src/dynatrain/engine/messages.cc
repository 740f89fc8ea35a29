#include "dynatrain/engine/messages.h"

#include <algorithm>

#include "dynatrain/engine/copy.h"

namespace dynatrain::engine {
namespace {

using planner::Transfer;

class MessageBuilder {
 public:
  MessageBuilder(const Program& program, const vps::StateCatalog& catalog, const RoundTable& rounds,
                 bool sending)
      : program_(program), catalog_(catalog), rounds_(rounds), sending_(sending) {}

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
    const int64_t turns = kTagsOfPrograms / (rounds * kTagsPerMessage);
    if (turns == 0) {
      return InvalidArgument("{} rounds need more tags than {}", rounds, kTagsOfPrograms);
    }
    const int64_t turn = phase % turns;
    for (auto& [round, message] : by_round_) {
      message.tag = static_cast<transport::Tag>((turn * rounds + round) * kTagsPerMessage);
      std::ranges::stable_sort(message.fragments, {}, [this](const Fragment& fragment) {
        return catalog_.tensor(fragment.piece.tensor).kind;
      });
      AddRuns(&message);
      message.fragments.shrink_to_fit();
      message.runs.shrink_to_fit();
      messages.push_back(std::move(message));
    }
    return messages;
  }

 private:
  void AddRuns(Message* message) const {
    bool gathers = false;  // the last run
    for (size_t i = 0; i < message->fragments.size(); ++i) {
      const ByteCount bytes = message->fragments[i].region.bytes();
      const bool is_short = bytes < kLongFragmentBytes;
      if (gathers && message->runs.back().bytes >= kShortestCutRun)
        gathers = LieTogether(message->fragments[i - 1], message->fragments[i]);
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

  // Whether both can be of one flat buffer: equal at both ends of a message.
  bool LieTogether(const Fragment& a, const Fragment& b) const {
    return catalog_.tensor(a.piece.tensor).kind == catalog_.tensor(b.piece.tensor).kind &&
           catalog_.parameter_of(a.piece.tensor).homes ==
               catalog_.parameter_of(b.piece.tensor).homes;
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

  // Shorter runs go on into the next buffer: a message on the wire costs more than a copy.
  static constexpr ByteCount kShortestCutRun = ByteCount{128} << 10;

  const Program& program_;
  const vps::StateCatalog& catalog_;
  const RoundTable& rounds_;
  const bool sending_;
  std::map<int32_t, Message> by_round_;
};

// What a transport takes for the operations of a message: its runs and its hashes, in chunks.
ByteCount TransportBytes(const Message& message, ByteCount chunk, ByteCount most_each) {
  constexpr ByteCount kPage = 4096;
  const auto of_chunks = [chunk, most_each](ByteCount bytes) {
    const ByteCount rest = bytes % chunk;
    return bytes / chunk * std::min(most_each, chunk + kPage) +
           (rest > 0 ? std::min(most_each, rest + kPage) : 0);
  };
  ByteCount bytes = of_chunks(static_cast<ByteCount>(message.fragments.size() * sizeof(uint64_t)));
  for (const Run& run : message.runs) bytes += of_chunks(run.bytes);
  return bytes;
}

}  // namespace

Result<std::vector<Message>> BuildMessages(const Program& program, const vps::StateCatalog& catalog,
                                           int32_t phase, const PhaseTransfers& transfers,
                                           const RoundTable& rounds, bool sending) {
  MessageBuilder builder(program, catalog, rounds, sending);
  for (const Transfer& transfer : transfers.direct)
    DT_RETURN_IF_ERROR(builder.Add(transfer, /*relayed=*/false));
  for (const Transfer& transfer : transfers.relayed)
    DT_RETURN_IF_ERROR(builder.Add(transfer, /*relayed=*/true));
  return builder.Finish(phase);
}

std::map<std::pair<bool, int32_t>, SlotNeeds> SlotsOf(const Program& program,
                                                      ByteCount transport_bytes) {
  std::map<std::pair<bool, int32_t>, SlotNeeds> slots;
  for (const Action& action : ActionsOf(program)) {
    if (action.kind != Action::Kind::kPostSend && action.kind != Action::Kind::kPostReceive)
      continue;
    const WireOp op = *WireOpOf(program, action);
    SlotNeeds& needs = slots[{op.sending, action.slot}];
    needs.staging_bytes = std::max(needs.staging_bytes, op.message->staging_bytes);
    needs.transport_bytes = std::max(
        needs.transport_bytes, TransportBytes(*op.message, program.chunk_bytes, transport_bytes));
  }
  return slots;
}

}  // namespace dynatrain::engine
