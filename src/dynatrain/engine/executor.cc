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

  Result<ExecutionReport> RunActions() {
    DT_RETURN_IF_ERROR(CheckMemory());
    if (staging_->checks() && program_.mode == Mode::kKeep) {
      const Stopwatch watch(clock_, &report_.check);
      report_.ties = SumTies(program_, old_);
    }
    for (const Action& action : staging_->actions()) DT_RETURN_IF_ERROR(Do(action));
    return report_;
  }

  const ExecutionProgress& progress() const { return progress_; }

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
        progress_.begun = action.phase + 1;
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
      case Kind::kReceived:
        progress_.received = action.phase + 1;
        return Status::Ok();
      case Kind::kPostAckSend:
      case Kind::kPostAckReceive:
        return PostAcknowledgement(action);
      case Kind::kFinishAckSend:
      case Kind::kFinishAckReceive:
        return FinishAcknowledgement(action);
      case Kind::kRelease:
        progress_.released = action.phase + 1;
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
      for (const Message& message : phase.sends)
        DT_RETURN_IF_ERROR(CheckFragments(message, SourceOf(message)));
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
    ByteCount in_runs = 0;
    for (const Run& run : message.runs) {
      in_runs += run.bytes;
      const Region& first = message.fragments[static_cast<size_t>(run.first)].region;
      if (run.in_place &&
          first.offset * first.elem_bytes + run.bytes > state.buffer(first.buffer).bytes()) {
        return InvalidArgument("rank {}: {} bytes with rank {} reach outside buffer {}",
                               program_.rank, run.bytes, message.peer, first.buffer);
      }
    }
    if (bytes == message.bytes && in_runs == bytes) return Status::Ok();
    return InvalidArgument("rank {}: a message of {} bytes with rank {} has fragments of {} bytes",
                           program_.rank, message.bytes, message.peer, bytes);
  }

  // The state that a message is sent from.
  const StateBuffers& SourceOf(const Message& message) const {
    return message.relayed ? std::as_const(*new_) : old_;
  }

  // Where a run lies: in a state buffer, or in the staging memory of its message.
  template <class Span>
  static Span MemoryOf(const Message& message, const Run& run, Span buffer, Span staging) {
    if (!run.in_place)
      return staging.subspan(static_cast<size_t>(run.staging_begin),
                             static_cast<size_t>(run.bytes));
    const Region& first = message.fragments[static_cast<size_t>(run.first)].region;
    return buffer.subspan(static_cast<size_t>(first.offset * first.elem_bytes),
                          static_cast<size_t>(run.bytes));
  }

  static vps::BufferIndex BufferOf(const Message& message, const Run& run) {
    return message.fragments[static_cast<size_t>(run.first)].region.buffer;
  }

  // Calls visit(slab, slab of the check's region; null without checks) for the slabs of a fragment.
  template <class Visit>
  void ForEachSlabOf(const Message& message, const MessageCheck* check, int32_t fragment,
                     const Visit& visit) {
    const auto index = static_cast<size_t>(fragment);
    check_slabs_.clear();
    if (check != nullptr) {
      ForEachSlab(check->regions[index], chunk_,
                  [this](const Region& slab) { check_slabs_.push_back(slab); });
    }
    size_t next = 0;
    ForEachSlab(message.fragments[index].region, chunk_, [&](const Region& slab) {
      visit(slab, next < check_slabs_.size() ? &check_slabs_[next] : nullptr);
      ++next;
    });
  }

  MessageCheck* CheckOf(const Action& action, bool sending) {
    return staging_->checks() ? &staging_->CheckOf(action.phase, action.index, sending) : nullptr;
  }

  void HashOne(ConstByteSpan buffer, const Region& region) {
    const Stopwatch watch(clock_, &report_.check);
    hasher_.Add(buffer, region);
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
    if (message.staging_bytes > 0)
      flight.staging = staging_->SlotFor(action, /*sending=*/false, message.staging_bytes);
    const auto chunk = static_cast<size_t>(chunk_);
    for (const Run& run : message.runs) {
      const ByteSpan target =
          MemoryOf(message, run, new_->bytes(BufferOf(message, run)), flight.staging);
      for (size_t begin = 0; begin < target.size(); begin += chunk) {
        const ByteSpan part = target.subspan(begin, std::min(chunk, target.size() - begin));
        DT_ASSIGN_OR_RETURN(const OpId op,
                            transport_.Receive(message.peer, TagOf(message, Wire::kData), part));
        flight.chunks.push_back(op);
      }
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
    if (message.staging_bytes > 0)
      flight.staging = staging_->SlotFor(action, /*sending=*/true, message.staging_bytes);
    MessageCheck* check = CheckOf(action, /*sending=*/true);
    for (const Run& run : message.runs) DT_RETURN_IF_ERROR(SendRun(message, run, check, &flight));
    return check == nullptr ? Status::Ok() : SendHashes(*check, message, &flight);
  }

  // Slab by slab: packed if need be, hashed while it is near, and sent as soon as a chunk is ready.
  Status SendRun(const Message& message, const Run& run, MessageCheck* check, InFlight* flight) {
    const StateBuffers& source = SourceOf(message);
    const ConstByteSpan memory = MemoryOf<ConstByteSpan>(
        message, run, source.bytes(BufferOf(message, run)), flight->staging);
    ByteCount ready = 0;
    ByteCount sent = 0;
    Status status;
    for (int32_t f = run.first; f < run.first + run.count; ++f) {
      ForEachSlabOf(message, check, f, [&](const Region& slab, const Region* check_slab) {
        if (!status.ok()) return;
        if (!run.in_place) PackOne(source, slab, run.staging_begin + ready, flight->staging);
        if (check_slab != nullptr) HashOne(source.bytes(check_slab->buffer), *check_slab);
        ready += slab.bytes();
        status = SendUpTo(message, memory, ready, &sent, flight);
      });
      DT_RETURN_IF_ERROR(status);
      if (check != nullptr) check->hashes[static_cast<size_t>(f)] = hasher_.Finish();
    }
    return Status::Ok();
  }

  void PackOne(const StateBuffers& state, const Region& region, ByteCount begin, ByteSpan run) {
    const Stopwatch watch(clock_, &report_.pack);
    Pack(state.bytes(region.buffer), region,
         run.subspan(static_cast<size_t>(begin), static_cast<size_t>(region.bytes())));
  }

  void UnpackOne(const Region& region, ByteCount begin, ByteSpan run) {
    const Stopwatch watch(clock_, &report_.unpack);
    Unpack(run.subspan(static_cast<size_t>(begin), static_cast<size_t>(region.bytes())), region,
           new_->bytes(region.buffer));
  }

  // Posts the chunks of `run` that are whole within its first `ready` bytes and not `sent` yet.
  Status SendUpTo(const Message& message, ConstByteSpan run, ByteCount ready, ByteCount* sent,
                  InFlight* flight) {
    const Stopwatch watch(clock_, &report_.wire);
    const auto total = static_cast<ByteCount>(run.size());
    while (*sent < ready && (*sent + chunk_ <= ready || ready == total)) {
      const ByteCount bytes = std::min(chunk_, total - *sent);
      const ConstByteSpan part =
          run.subspan(static_cast<size_t>(*sent), static_cast<size_t>(bytes));
      DT_ASSIGN_OR_RETURN(const OpId op,
                          transport_.Send(message.peer, TagOf(message, Wire::kData), part));
      flight->chunks.push_back(op);
      *sent += bytes;
    }
    return Status::Ok();
  }

  Status SendHashes(const MessageCheck& check, const Message& message, InFlight* flight) {
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

  Status FinishReceive(const Action& action, const Message& message) {
    InFlight& flight = SlotOf(action, /*sending=*/false);
    MessageCheck* check = CheckOf(action, /*sending=*/false);
    size_t waited = 0;
    for (const Run& run : message.runs)
      DT_RETURN_IF_ERROR(ReceiveRun(message, run, check, &waited, &flight));
    while (waited < flight.chunks.size()) DT_RETURN_IF_ERROR(WaitFor(flight.chunks[waited++]));
    return check == nullptr ? Status::Ok() : Compare(message, *check);
  }

  // Each slab as soon as its last chunk is there: unpacked if need be, and hashed while it is near.
  Status ReceiveRun(const Message& message, const Run& run, MessageCheck* check, size_t* waited,
                    InFlight* flight) {
    ByteCount end = 0;
    ByteCount here = 0;
    Status status;
    for (int32_t f = run.first; f < run.first + run.count; ++f) {
      ForEachSlabOf(message, check, f, [&](const Region& slab, const Region* check_slab) {
        const ByteCount begin = end;
        end += slab.bytes();
        for (; status.ok() && here < end; here = std::min(here + chunk_, run.bytes))
          status = WaitFor(flight->chunks[(*waited)++]);
        if (!status.ok()) return;
        if (!run.in_place) UnpackOne(slab, run.staging_begin + begin, flight->staging);
        if (check_slab != nullptr)
          HashOne(std::as_const(*new_).bytes(check_slab->buffer), *check_slab);
      });
      DT_RETURN_IF_ERROR(status);
      if (check != nullptr) check->found[static_cast<size_t>(f)] = hasher_.Finish();
    }
    return Status::Ok();
  }

  // The regions that were hashed come from the shard maps: a fragment written to a wrong place is
  // missing in its right one.
  Status Compare(const Message& message, const MessageCheck& check) const {
    for (size_t i = 0; i < check.found.size(); ++i) {
      if (check.found[i] == check.hashes[i]) continue;
      const planner::Piece& piece = message.fragments[i].piece;
      return DataLoss("tensor {} {}: what rank {} holds now is not what rank {} has",
                      NameOf(program_, piece.tensor), piece.box.ToString(), program_.rank,
                      message.peer);
    }
    return Status::Ok();
  }

  Status FinishSend(const Action& action) {
    for (const OpId op : SlotOf(action, /*sending=*/true).chunks) DT_RETURN_IF_ERROR(WaitFor(op));
    return Status::Ok();
  }

  Status Take(const Phase& phase) {
    const Stopwatch watch(clock_, &report_.memory);
    GiveBack(phase.drops);
    for (const auto& [from, to] : phase.moves) {
      DT_RETURN_IF_ERROR(
          new_->TakeOver(to.buffer, to.begin, *old_.storage(from.buffer), from.begin, to.bytes));
    }
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
  RegionHasher hasher_;
  std::vector<Region> check_slabs_;  // of one fragment
  ExecutionReport report_;
  ExecutionProgress progress_;
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
                                Verify verify, const Clock& clock, Duration timeout,
                                ExecutionProgress* progress) {
  auto* memory = dynamic_cast<StagingMemory*>(staging);
  DT_CHECK(memory != nullptr);
  DT_CHECK_MSG(memory->checks() == (verify != Verify::kOff), "staging was made for another verify");
  Execution execution(program, old_state, new_state, transport, memory, clock, timeout);
  Result<ExecutionReport> report = execution.RunActions();
  if (progress != nullptr) *progress = execution.progress();
  return report;
}

}  // namespace dynatrain::engine
