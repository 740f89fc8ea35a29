#include "dynatrain/engine/staging.h"

#include <algorithm>

#include "dynatrain/engine/messages.h"

namespace dynatrain::engine {
namespace {

// What the heap adds to each block.
constexpr ByteCount kBlockBytes = 16;

template <class T>
ByteCount HeapBytes(const std::vector<T>& vector) {
  return vector.capacity() == 0
             ? 0
             : static_cast<ByteCount>(vector.capacity() * sizeof(T)) + kBlockBytes;
}

ByteCount HeapBytes(const std::vector<Message>& messages, bool sending) {
  ByteCount bytes = HeapBytes(messages);
  for (const Message& message : messages) {
    bytes +=
        HeapBytes(message.fragments) + HeapBytes(message.runs) + ByteCount{sizeof(MessageCheck)};
    const auto checked =
        static_cast<ByteCount>(sizeof(Region) + (sending ? 1 : 2) * sizeof(uint64_t));
    bytes += static_cast<ByteCount>(message.fragments.size()) * checked + 3 * kBlockBytes;
  }
  return bytes;
}

}  // namespace

ByteCount BookkeepingBytes(const Program& program) {
  ByteCount bytes = HeapBytes(program.phases) + HeapBytes(program.old_shards) +
                    HeapBytes(program.new_shards) + HeapBytes(program.ties);
  for (const Phase& phase : program.phases) {
    bytes +=
        HeapBytes(phase.receives, /*sending=*/false) + HeapBytes(phase.sends, /*sending=*/true);
    bytes += HeapBytes(phase.copies) + HeapBytes(phase.drops) + HeapBytes(phase.moves) +
             HeapBytes(phase.takes) + HeapBytes(phase.releases);
  }
  return bytes + HeapBytes(ActionsOf(program));
}

Result<std::unique_ptr<StagingMemory>> StagingMemory::Make(const Program& program, Verify verify) {
  auto staging = std::make_unique<StagingMemory>();
  staging->actions_ = ActionsOf(program);
  staging->acknowledgements_.resize(static_cast<size_t>(std::max(1, program.window)));
  DT_RETURN_IF_ERROR(staging->MakeSlots(program));
  staging->checks_ = verify != Verify::kOff;
  if (!staging->checks_) return staging;
  for (const Phase& phase : program.phases) {
    DT_RETURN_IF_ERROR(MakeChecks(program, phase.receives, /*sending=*/false,
                                  &staging->receive_checks_.emplace_back()));
    DT_RETURN_IF_ERROR(
        MakeChecks(program, phase.sends, /*sending=*/true, &staging->send_checks_.emplace_back()));
  }
  return staging;
}

Status StagingMemory::MakeSlots(const Program& program) {
  for (const auto& [slot, needs] : SlotsOf(program, /*transport_bytes=*/0)) {
    Result<std::shared_ptr<Storage>> storage = Storage::Make(needs.staging_bytes);
    if (!storage.ok()) return storage.status().Within("staging memory of a switch");
    slots_[slot] = *std::move(storage);
  }
  return Status::Ok();
}

Status StagingMemory::MakeChecks(const Program& program, const std::vector<Message>& messages,
                                 bool sending, std::vector<MessageCheck>* checks) {
  checks->reserve(messages.size());
  for (const Message& message : messages) {
    const bool old = sending && !message.relayed;
    const std::vector<vps::Shard>& shards = old ? program.old_shards : program.new_shards;
    const std::vector<vps::Buffer>& buffers = old ? program.old_buffers : program.new_buffers;
    MessageCheck& check = checks->emplace_back();
    check.hashes.resize(message.fragments.size());
    check.regions.reserve(message.fragments.size());
    if (!sending) check.found.resize(message.fragments.size());
    for (const Fragment& fragment : message.fragments) {
      DT_ASSIGN_OR_RETURN(const Region region, RegionOf(fragment.piece, shards, buffers));
      check.regions.push_back(region);
    }
  }
  return Status::Ok();
}

ByteSpan StagingMemory::SlotFor(const Action& action, bool sending, ByteCount bytes) const {
  return slots_.at({sending, action.slot})->memory().first(static_cast<size_t>(bytes));
}

Result<std::unique_ptr<Staging>> Staging::Make(const Program& program, Verify verify) {
  DT_ASSIGN_OR_RETURN(std::unique_ptr<StagingMemory> staging, StagingMemory::Make(program, verify));
  return std::unique_ptr<Staging>(std::move(staging));
}

}  // namespace dynatrain::engine
