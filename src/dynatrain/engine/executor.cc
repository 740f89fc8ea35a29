#include "dynatrain/engine/executor.h"

#include <algorithm>
#include <utility>

#include "dynatrain/base/hash.h"
#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/staging.h"
#include "dynatrain/engine/storage.h"
#include "dynatrain/engine/ties.h"

namespace dynatrain::engine {
namespace {

using transport::OpId;
using transport::Transport;

// Adds the time it lives to a share of the report.
class Stopwatch {
 public:
  Stopwatch(const Clock& clock, Duration* share)
      : clock_(clock), share_(share), start_(clock.Now()) {}
  ~Stopwatch() { *share_ += clock_.Now() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  const Clock& clock_;
  Duration* share_;
  const TimePoint start_;
};

// A message between post and finish.
struct InFlight {
  std::vector<OpId> chunks;
  OpId acknowledgement = 0;
  ByteSpan staging;  // empty if in place
};

class Execution {
 public:
  Execution(const Program& program, const StateBuffers& old_state, StateBuffers* new_state,
            Transport& transport, StagingMemory* staging, const Clock& clock, Duration timeout)
      : program_(program),
        old_(old_state),
        new_(new_state),
        transport_(transport),
        staging_(staging),
        clock_(clock),
        timeout_(timeout),
        chunk_(std::min(program.chunk_bytes, transport.capabilities().max_message)) {}

  Result<ExecutionReport> Run() {
    DT_RETURN_IF_ERROR(CheckMemory());
    if (staging_->checks()) {
      const Stopwatch watch(clock_, &report_.check);
      report_.ties = SumTies(program_, old_);
    }
    for (const Action& action : staging_->actions()) DT_RETURN_IF_ERROR(Do(action));
    return report_;
  }

 private:
  using Kind = Action::Kind;

  const Phase& PhaseOf(const Action& action) const {
    return program_.phases[static_cast<size_t>(action.phase)];
  }

  Status Do(const Action& action) {
    const auto index = static_cast<size_t>(action.index);
    const Phase& phase = PhaseOf(action);
    switch (action.kind) {
      case Kind::kTake:
        return Take(phase);
      case Kind::kPostReceive:
        return PostReceive(action, phase.receives[index]);
      case Kind::kPostSend:
        return PostSend(action, phase.sends[index]);
      case Kind::kCopies:
        RunCopies(phase);
        return Status::Ok();
      case Kind::kFinishReceive:
        return FinishReceive(action, phase.receives[index]);
      case Kind::kFinishSend:
        return FinishSend(action);
      case Kind::kVerify:
        return VerifyPhase(action, phase);
      case Kind::kPostAckSend:
      case Kind::kPostAckReceive:
        return PostAcknowledgement(action);
      case Kind::kFinishAckSend:
      case Kind::kFinishAckReceive:
        return FinishAcknowledgement(action);
      case Kind::kRelease:
        GiveBack(phase.releases);
        return Status::Ok();
    }
    return Status::Ok();
  }

  // Before the first byte: the state is of the shape that the program was compiled for.
  Status CheckMemory() const {
    if (transport_.rank() != program_.rank) {
      return InvalidArgument("a program of rank {} over a transport of rank {}", program_.rank,
                             transport_.rank());
    }
    if (chunk_ < 1)
      return InvalidArgument("messages of at most {} bytes; at least 1 is right", chunk_);
    DT_RETURN_IF_ERROR(CheckState(old_, program_.old_buffers, "old"));
    DT_RETURN_IF_ERROR(CheckState(*new_, program_.new_buffers, "new"));
    for (const Phase& phase : program_.phases) {
      for (const Message& message : phase.sends) DT_RETURN_IF_ERROR(CheckFragments(message, old_));
      for (const Message& message : phase.receives)
        DT_RETURN_IF_ERROR(CheckFragments(message, *new_));
    }
    return Status::Ok();
  }

  Status CheckState(const StateBuffers& state, const std::vector<vps::Buffer>& wanted,
                    std::string_view which) const {
    if (state.num_buffers() != static_cast<int>(wanted.size())) {
      return InvalidArgument("rank {}: the {} state has {} buffers where its layout has {}",
                             program_.rank, which, state.num_buffers(), wanted.size());
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      const vps::Buffer& buffer = state.buffer(static_cast<vps::BufferIndex>(i));
      if (buffer.bytes() != wanted[i].bytes()) {
        return InvalidArgument("rank {}: {} buffer {} has {} bytes where its layout has {}",
                               program_.rank, which, wanted[i].name, buffer.bytes(),
                               wanted[i].bytes());
      }
    }
    return Status::Ok();
  }

  Status CheckFragments(const Message& message, const StateBuffers& state) const {
    ByteCount bytes = 0;
    for (const Fragment& fragment : message.fragments) {
      const Region& region = fragment.region;
      bytes += region.bytes();
      if (region.buffer < 0 || region.buffer >= state.num_buffers() ||
          !Fits(region, state.buffer(region.buffer).bytes())) {
        return InvalidArgument("rank {}: tensor {} {} reaches outside buffer {}", program_.rank,
                               NameOf(program_, fragment.piece.tensor),
                               fragment.piece.box.ToString(), region.buffer);
      }
    }
    if (bytes == message.bytes) return Status::Ok();
    return InvalidArgument("rank {}: a message of {} bytes with rank {} has fragments of {} bytes",
                           program_.rank, message.bytes, message.peer, bytes);
  }

  // The bytes of an in-place message, in its state buffer.
  template <class Span>
  static Span InPlace(const Message& message, Span buffer) {
    const Region& first = message.fragments.front().region;
    return buffer.subspan(static_cast<size_t>(first.offset * first.elem_bytes),
                          static_cast<size_t>(message.bytes));
  }

  InFlight& SlotOf(const Action& action, bool sending) {
    std::vector<InFlight>& slots = sending ? sends_ : receives_;
    const auto slot = static_cast<size_t>(action.slot);
    if (slots.size() <= slot) slots.resize(slot + 1);
    return slots[slot];
  }

  Status PostReceive(const Action& action, const Message& message) {
    const Stopwatch watch(clock_, &report_.wire);
    InFlight& flight = SlotOf(action, /*sending=*/false);
    flight = {};
    ByteSpan target;
    if (message.in_place) {
      target = InPlace(message, new_->bytes(message.fragments.front().region.buffer));
    } else {
      target = flight.staging = staging_->SlotFor(action, /*sending=*/false, message.bytes);
    }
    const auto chunk = static_cast<size_t>(chunk_);
    for (size_t begin = 0; begin < target.size(); begin += chunk) {
      const ByteSpan part = target.subspan(begin, std::min(chunk, target.size() - begin));
      DT_ASSIGN_OR_RETURN(const OpId op,
                          transport_.Receive(message.peer, TagOf(message, Wire::kData), part));
      flight.chunks.push_back(op);
    }
    if (!staging_->checks()) return Status::Ok();
    auto& hashes = staging_->CheckOf(action.phase, action.index, /*sending=*/false).hashes;
    return ForEachHashChunk(
        std::as_writable_bytes(std::span(hashes)), [&](ByteSpan part) -> Status {
          DT_ASSIGN_OR_RETURN(
              const OpId op, transport_.Receive(message.peer, TagOf(message, Wire::kHashes), part));
          flight.chunks.push_back(op);
          return Status::Ok();
        });
  }

  template <class Bytes, class Visit>
  Status ForEachHashChunk(Bytes bytes, const Visit& visit) const {
    const auto chunk = static_cast<size_t>(chunk_);
    for (size_t begin = 0; begin < bytes.size(); begin += chunk) {
      DT_RETURN_IF_ERROR(visit(bytes.subspan(begin, std::min(chunk, bytes.size() - begin))));
    }
    return Status::Ok();
  }

  Status PostSend(const Action& action, const Message& message) {
    InFlight& flight = SlotOf(action, /*sending=*/true);
    flight = {};
    ConstByteSpan source;
    if (message.in_place) {
      source = InPlace(message, old_.bytes(message.fragments.front().region.buffer));
      DT_RETURN_IF_ERROR(SendUpTo(message, source, message.bytes, &flight));
    } else {
      flight.staging = staging_->SlotFor(action, /*sending=*/true, message.bytes);
      ByteCount packed = 0;
      Status status;
      for (const Fragment& fragment : message.fragments) {
        ForEachSlab(fragment.region, chunk_, [&](const Region& slab) {
          if (!status.ok()) return;
          PackOne(slab, packed, flight.staging);
          packed += slab.bytes();
          status = SendUpTo(message, flight.staging, packed, &flight);
        });
      }
      DT_RETURN_IF_ERROR(status);
    }
    if (!staging_->checks()) return Status::Ok();
    return SendHashes(action, message, &flight);
  }

  void PackOne(const Region& region, ByteCount begin, ByteSpan run) {
    const Stopwatch watch(clock_, &report_.pack);
    Pack(old_.bytes(region.buffer), region,
         run.subspan(static_cast<size_t>(begin), static_cast<size_t>(region.bytes())));
  }

  void UnpackOne(const Region& region, ByteCount begin, ByteSpan run) {
    const Stopwatch watch(clock_, &report_.unpack);
    Unpack(run.subspan(static_cast<size_t>(begin), static_cast<size_t>(region.bytes())), region,
           new_->bytes(region.buffer));
  }

  // Posts the chunks of `run` that are whole within its first `ready` bytes and not posted yet.
  Status SendUpTo(const Message& message, ConstByteSpan run, ByteCount ready, InFlight* flight) {
    const Stopwatch watch(clock_, &report_.wire);
    auto begin = static_cast<ByteCount>(flight->chunks.size()) * chunk_;
    while (begin < ready && (begin + chunk_ <= ready || ready == message.bytes)) {
      const ByteCount bytes = std::min(chunk_, message.bytes - begin);
      const ConstByteSpan part =
          run.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
      DT_ASSIGN_OR_RETURN(const OpId op,
                          transport_.Send(message.peer, TagOf(message, Wire::kData), part));
      flight->chunks.push_back(op);
      begin += bytes;
    }
    return Status::Ok();
  }

  Status SendHashes(const Action& action, const Message& message, InFlight* flight) {
    MessageCheck& check = staging_->CheckOf(action.phase, action.index, /*sending=*/true);
    {
      const Stopwatch watch(clock_, &report_.check);
      for (size_t i = 0; i < check.regions.size(); ++i) {
        check.hashes[i] = HashRegion(old_.bytes(check.regions[i].buffer), check.regions[i]);
      }
    }
    const Stopwatch watch(clock_, &report_.wire);
    return ForEachHashChunk(
        std::as_bytes(std::span(check.hashes)), [&](ConstByteSpan part) -> Status {
          DT_ASSIGN_OR_RETURN(const OpId op,
                              transport_.Send(message.peer, TagOf(message, Wire::kHashes), part));
          flight->chunks.push_back(op);
          return Status::Ok();
        });
  }

  void RunCopies(const Phase& phase) {
    const Stopwatch watch(clock_, &report_.copy);
    for (const LocalCopy& copy : phase.copies) {
      CopyRegion(old_.bytes(copy.from.buffer), copy.from, new_->bytes(copy.to.buffer), copy.to);
    }
  }

  Status WaitFor(OpId op) {
    const Stopwatch watch(clock_, &report_.wire);
    return transport_.Wait(op, timeout_);
  }

  // Unpacks each slab as soon as its last chunk is there.
  Status FinishReceive(const Action& action, const Message& message) {
    InFlight& flight = SlotOf(action, /*sending=*/false);
    size_t waited = 0;
    ByteCount end = 0;
    Status status;
    const auto unpack = [&](const Region& slab) {
      const ByteCount begin = end;
      end += slab.bytes();
      while (status.ok() && static_cast<ByteCount>(waited) * chunk_ < end)
        status = WaitFor(flight.chunks[waited++]);
      if (status.ok()) UnpackOne(slab, begin, flight.staging);
    };
    if (!message.in_place) {
      for (const Fragment& fragment : message.fragments)
        ForEachSlab(fragment.region, chunk_, unpack);
      DT_RETURN_IF_ERROR(status);
    }
    while (waited < flight.chunks.size()) DT_RETURN_IF_ERROR(WaitFor(flight.chunks[waited++]));
    return Status::Ok();
  }

  Status FinishSend(const Action& action) {
    for (const OpId op : SlotOf(action, /*sending=*/true).chunks) DT_RETURN_IF_ERROR(WaitFor(op));
    return Status::Ok();
  }

  // After everything of the phase was written, so that a write to a wrong place shows as well.
  Status VerifyPhase(const Action& action, const Phase& phase) {
    if (!staging_->checks()) return Status::Ok();
    const Stopwatch watch(clock_, &report_.check);
    for (size_t m = 0; m < phase.receives.size(); ++m) {
      const Message& message = phase.receives[m];
      const MessageCheck& check =
          staging_->CheckOf(action.phase, static_cast<int32_t>(m), /*sending=*/false);
      for (size_t i = 0; i < check.regions.size(); ++i) {
        const Region& region = check.regions[i];
        if (HashRegion(std::as_const(*new_).bytes(region.buffer), region) == check.hashes[i])
          continue;
        const planner::Piece& piece = message.fragments[i].piece;
        return DataLoss("tensor {} {}: what rank {} holds now is not what rank {} has",
                        NameOf(program_, piece.tensor), piece.box.ToString(), program_.rank,
                        message.peer);
      }
    }
    return Status::Ok();
  }

  Status Take(const Phase& phase) {
    const Stopwatch watch(clock_, &report_.memory);
    GiveBack(phase.drops);
    for (const MemoryRange& range : phase.takes) {
      DT_RETURN_IF_ERROR(new_->Take(range.buffer, range.begin, range.bytes));
    }
    return Status::Ok();
  }

  void GiveBack(const std::vector<MemoryRange>& ranges) {
    const Stopwatch watch(clock_, &report_.memory);
    for (const MemoryRange& range : ranges)
      old_.storage(range.buffer)->GiveBack(range.begin, range.bytes);
  }

  // The needer has unpacked and checked all of the phase: the source may forget it.
  Status PostAcknowledgement(const Action& action) {
    const Stopwatch watch(clock_, &report_.wire);
    const WireOp op = *WireOpOf(program_, action);
    auto& [sent, received] = staging_->AcknowledgementOf(action);
    if (op.sending) {
      sent = AcknowledgementFor(op);
      DT_ASSIGN_OR_RETURN(
          SlotOf(action, true).acknowledgement,
          transport_.Send(op.message->peer, op.tag, std::as_bytes(std::span(&sent, 1))));
      return Status::Ok();
    }
    DT_ASSIGN_OR_RETURN(SlotOf(action, false).acknowledgement,
                        transport_.Receive(op.message->peer, op.tag,
                                           std::as_writable_bytes(std::span(&received, 1))));
    return Status::Ok();
  }

  Status FinishAcknowledgement(const Action& action) {
    const WireOp op = *WireOpOf(program_, action);
    DT_RETURN_IF_ERROR(WaitFor(SlotOf(action, op.sending).acknowledgement));
    if (op.sending || staging_->AcknowledgementOf(action).received == AcknowledgementFor(op))
      return Status::Ok();
    return DataLoss("rank {}: rank {} acknowledged something else than phase {}", program_.rank,
                    op.message->peer, action.phase);
  }

  static uint64_t AcknowledgementFor(const WireOp& op) { return Mix64(op.tag); }

  const Program& program_;
  const StateBuffers& old_;
  StateBuffers* const new_;
  Transport& transport_;
  StagingMemory* const staging_;
  const Clock& clock_;
  const Duration timeout_;
  const ByteCount chunk_;
  ExecutionReport report_;
  std::vector<InFlight> receives_;  // by slot
  std::vector<InFlight> sends_;
};

}  // namespace

Result<Verify> ParseVerify(std::string_view name) {
  if (name == "off") return Verify::kOff;
  if (name == "moved") return Verify::kMoved;
  if (name == "full") return Verify::kFull;
  return InvalidArgument("verify {}: off, moved or full", name);
}

Result<ExecutionReport> Execute(const Program& program, const StateBuffers& old_state,
                                StateBuffers* new_state, Transport& transport, Staging* staging,
                                Verify verify, const Clock& clock, Duration timeout) {
  auto* memory = dynamic_cast<StagingMemory*>(staging);
  DT_CHECK(memory != nullptr);
  DT_CHECK_MSG(memory->checks() == (verify != Verify::kOff), "staging was made for another verify");
  return Execution(program, old_state, new_state, transport, memory, clock, timeout).Run();
}

}  // namespace dynatrain::engine
