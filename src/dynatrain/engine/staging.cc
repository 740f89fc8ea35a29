#include "dynatrain/engine/staging.h"

#include <algorithm>

#include "dynatrain/engine/messages.h"

namespace dynatrain::engine {

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
  for (const auto& [slot, bytes] : StagingSlots(program)) {
    Result<std::shared_ptr<Storage>> storage = Storage::Make(bytes);
    if (!storage.ok()) return storage.status().Within("staging memory of a switch");
    slots_[slot] = *std::move(storage);
  }
  return Status::Ok();
}

Status StagingMemory::MakeChecks(const Program& program, const std::vector<Message>& messages,
                                 bool sending, std::vector<MessageCheck>* checks) {
  for (const Message& message : messages) {
    const bool old = sending && !message.relayed;
    const std::vector<vps::Shard>& shards = old ? program.old_shards : program.new_shards;
    const std::vector<vps::Buffer>& buffers = old ? program.old_buffers : program.new_buffers;
    MessageCheck& check = checks->emplace_back();
    check.hashes.resize(message.fragments.size());
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
