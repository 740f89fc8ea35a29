#include "dynatrain/transport/faulty.h"

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "dynatrain/base/random.h"

namespace dynatrain::transport {
namespace {

constexpr OpId kOwnIds =
    OpId{1} << 62;  // operations that the wrapped transport does not know by our id

}  // namespace

// A message that waits until the next one to its peer is sent.
struct FaultyTransport::Held {
  OpId id;
  RankId to;
  Tag tag;
  ConstByteSpan data;
};

struct FaultyTransport::State {
  std::deque<std::vector<std::byte>> copies;
  std::optional<Held> held;
  std::map<OpId, OpId> inner_of;  // of our ids; a dropped message has none
  OpId next_id = kOwnIds;
};

FaultyTransport::FaultyTransport(std::unique_ptr<Transport> inner, std::vector<Fault> faults,
                                 std::function<void()> on_death)
    : state_(std::make_unique<State>()),
      inner_(std::move(inner)),
      faults_(std::move(faults)),
      on_death_(std::move(on_death)) {}

FaultyTransport::~FaultyTransport() { inner_.reset(); }

Status FaultyTransport::FailNow(int64_t operation) {
  for (const Fault& fault : faults_) {
    if (fault.at != operation) continue;
    if (fault.kind == Fault::Kind::kFail) {
      inner_->Abort();
      return Unavailable("rank {}: injected failure of operation {}", rank(), operation);
    }
    if (fault.kind == Fault::Kind::kDie) {
      inner_->Abort();
      if (on_death_) on_death_();
      return Unavailable("rank {}: injected death at operation {}", rank(), operation);
    }
  }
  return Status::Ok();
}

Status FaultyTransport::Release() {
  if (!state_->held) return Status::Ok();
  const Held held = *std::exchange(state_->held, std::nullopt);
  DT_ASSIGN_OR_RETURN(state_->inner_of[held.id], inner_->Send(held.to, held.tag, held.data));
  return Status::Ok();
}

Result<OpId> FaultyTransport::SendFaulty(const Fault& fault, RankId to, Tag tag,
                                         ConstByteSpan data) {
  Random random(fault.seed);
  switch (fault.kind) {
    case Fault::Kind::kFlipBit: {
      std::vector<std::byte>& copy = state_->copies.emplace_back(data.begin(), data.end());
      const auto bit =
          static_cast<size_t>(random.Between(0, static_cast<int64_t>(data.size()) * 8 - 1));
      copy[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      return inner_->Send(to, tag, copy);
    }
    case Fault::Kind::kDrop:
      return state_->next_id++;
    case Fault::Kind::kDuplicate: {
      DT_ASSIGN_OR_RETURN(const OpId first, inner_->Send(to, tag, data));
      const std::vector<std::byte>& copy = state_->copies.emplace_back(data.begin(), data.end());
      DT_RETURN_IF_ERROR(inner_->Send(to, tag, copy).status());
      return first;
    }
    case Fault::Kind::kTruncate:
      return inner_->Send(to, tag, data.first(data.size() - 1));
    case Fault::Kind::kReorder:
      state_->held = Held{state_->next_id++, to, tag, data};
      return state_->held->id;
    case Fault::Kind::kDelay:
      MonotonicClock().SleepUntil(MonotonicClock().Now() + fault.delay);
      return inner_->Send(to, tag, data);
    case Fault::Kind::kFail:
    case Fault::Kind::kDie:
      break;
  }
  return inner_->Send(to, tag, data);
}

Result<OpId> FaultyTransport::Send(RankId to, Tag tag, ConstByteSpan data) {
  DT_RETURN_IF_ERROR(FailNow(num_operations_++));
  if (data.empty()) return inner_->Send(to, tag, data);
  const int64_t number = num_sends_++;
  for (const Fault& fault : faults_) {
    const bool concerns_sends = fault.kind != Fault::Kind::kFail && fault.kind != Fault::Kind::kDie;
    if (concerns_sends && fault.at == number) return SendFaulty(fault, to, tag, data);
  }
  DT_ASSIGN_OR_RETURN(const OpId op, inner_->Send(to, tag, data));
  if (state_->held && state_->held->to == to) DT_RETURN_IF_ERROR(Release());
  return op;
}

Result<OpId> FaultyTransport::Receive(RankId from, Tag tag, ByteSpan data) {
  DT_RETURN_IF_ERROR(FailNow(num_operations_++));
  return inner_->Receive(from, tag, data);
}

Status FaultyTransport::Wait(OpId op, Duration timeout) {
  if (op < kOwnIds) return inner_->Wait(op, timeout);
  if (state_->held && state_->held->id == op) DT_RETURN_IF_ERROR(Release());
  const auto it = state_->inner_of.find(op);
  return it == state_->inner_of.end() ? Status::Ok() : inner_->Wait(it->second, timeout);
}

}  // namespace dynatrain::transport
