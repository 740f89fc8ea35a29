#include "dynatrain/bridge/c10d_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "dynatrain/base/check.h"
#include "dynatrain/bridge/deadline.h"
#include "dynatrain/bridge/fence.h"

namespace dynatrain::bridge {
namespace {

using transport::OpId;
using transport::Tag;

// Lengths in place are 1 to kMostUnits units.
constexpr size_t kUnit = size_t{4} << 10;
constexpr size_t kMostUnits = 1024;
// Tags of a message: its head, then one for each length in place.
constexpr uint64_t kTagsPerMessage = 1 + kMostUnits;
static_assert(transport::kTagLimit * kTagsPerMessage <= uint64_t{1} << 31);
constexpr uint64_t kMagic = 0x64796e617472616e;

struct Header {
  uint64_t magic;
  uint64_t bytes;
};

constexpr size_t kLongestHead = sizeof(Header) + kUnit;

// A view for one Gloo call; Gloo does not write to what it sends.
std::vector<at::Tensor> View(std::byte* data, size_t bytes) {
  return {at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte)};
}

}  // namespace

C10dTransport::C10dTransport(c10::intrusive_ptr<c10d::Backend> group, std::vector<RankId> ranks,
                             RankId rank, std::shared_ptr<WorkerThread> reaper)
    : group_(std::move(group)), ranks_(std::move(ranks)), rank_(rank), reaper_(std::move(reaper)) {
  for (size_t i = 0; i < ranks_.size(); ++i) positions_[ranks_[i]] = static_cast<int>(i);
  DT_CHECK(positions_.size() == ranks_.size());
  DT_CHECK(static_cast<size_t>(group_->getSize()) == ranks_.size());
  DT_CHECK(positions_.at(rank_) == group_->getRank());
}

C10dTransport::~C10dTransport() {
  // Releasing a work waits until the device thread has left its buffer.
  operations_.clear();
  if (reaper_ == nullptr) return;
  reaper_->Post([group = std::move(group_)]() mutable { group.reset(); });
}

std::string C10dTransport::Describe(const Operation& op) const {
  return fmt::format("{} {} {} {} tag {}", op.is_send ? "send" : "receive", rank_,
                     op.is_send ? "->" : "<-", op.peer, op.tag);
}

Status C10dTransport::Dead() {
  {
    const std::lock_guard lock(abort_mutex_);
    if (aborted_) return Aborted("transport of rank {} was aborted", rank_);
  }
  if (failed_.ok()) return {};
  return Unavailable("transport of rank {} is dead since: {}", rank_, failed_.message());
}

Status C10dTransport::Fail(const Status& status) {
  if (failed_.ok()) failed_ = status;
  return status;
}

Result<OpId> C10dTransport::Send(RankId to, Tag tag, ConstByteSpan data) {
  return Start(true, to, tag, const_cast<std::byte*>(data.data()), data.size());
}

Result<OpId> C10dTransport::Receive(RankId from, Tag tag, ByteSpan data) {
  return Start(false, from, tag, data.data(), data.size());
}

Result<OpId> C10dTransport::Start(bool is_send, RankId peer, Tag tag, std::byte* data,
                                  size_t bytes) {
  DT_RETURN_IF_ERROR(Dead());
  Operation op = {.is_send = is_send,
                  .peer = peer,
                  .tag = tag,
                  .data = data,
                  .bytes = bytes,
                  .head = {},
                  .head_here = false,
                  .works = {}};
  const auto position = positions_.find(peer);
  if (position == positions_.end() || peer == rank_) {
    return InvalidArgument("{}: the peer must be another of the transport's ranks {}", Describe(op),
                           fmt::join(ranks_, ","));
  }
  if (tag >= transport::kTagLimit)
    return InvalidArgument("{}: tags are below {}", Describe(op), transport::kTagLimit);
  const OpId id = next_op_++;
  Operation& posted = operations_.emplace(id, std::move(op)).first->second;
  if (bytes > 0) {
    const Status status = Fence(Describe(posted), [&] { Post(posted, position->second); });
    if (!status.ok()) return Fail(status);
  }
  return id;
}

void C10dTransport::Post(Operation& op, int position) {
  const size_t tail = op.bytes % kUnit;
  op.head = TakeHead();
  // A head is 0 units.
  const auto post = [&](std::byte* at, size_t length, size_t units) {
    const auto tag = static_cast<int>(op.tag * kTagsPerMessage + units);
    std::vector<at::Tensor> view = View(at, length);
    op.works.push_back(op.is_send ? group_->send(view, position, tag)
                                  : group_->recv(view, position, tag));
  };
  if (op.is_send) {
    const Header header = {.magic = kMagic, .bytes = op.bytes};
    std::memcpy(op.head.get(), &header, sizeof(header));
    std::memcpy(op.head.get() + sizeof(header), op.data + (op.bytes - tail), tail);
    post(op.head.get(), sizeof(header) + tail, 0);
  } else {
    post(op.head.get(), kLongestHead, 0);
  }
  for (size_t left = op.bytes / kUnit, begin = 0; left > 0;) {
    const size_t units = std::min(left, kMostUnits);
    post(op.data + begin, units * kUnit, units);
    begin += units * kUnit;
    left -= units;
  }
}

C10dTransport::Head C10dTransport::TakeHead() {
  if (free_heads_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kLongestHead);
  Head head = std::move(free_heads_.back());
  free_heads_.pop_back();
  return head;
}

Status C10dTransport::Wait(OpId id, Duration timeout) {
  DT_RETURN_IF_ERROR(Dead());
  const auto it = operations_.find(id);
  if (it == operations_.end()) return InvalidArgument("operation {} is not outstanding", id);
  // After a failure Gloo may still use the buffers, so the operation stays until the group goes.
  Status status = WaitForEarlierHeads(id, it->second, timeout);
  if (status.ok()) status = WaitFor(it->second, timeout);
  if (!status.ok()) return Fail(status);
  if (it->second.head != nullptr) free_heads_.push_back(std::move(it->second.head));
  operations_.erase(it);
  return {};
}

// If an earlier message of the same pair and tag is not of the length that was expected, what lies
// in this one's memory may be the other's.
Status C10dTransport::WaitForEarlierHeads(OpId id, const Operation& op, Duration timeout) {
  if (op.is_send) return {};
  const Deadline deadline(timeout);
  for (auto& [other_id, other] : operations_) {
    if (other_id >= id) break;
    if (other.is_send || other.peer != op.peer || other.tag != op.tag || other.bytes == 0) continue;
    DT_RETURN_IF_ERROR(WaitForHead(other, deadline.left(), timeout));
  }
  return {};
}

Status C10dTransport::WaitFor(Operation& op, Duration timeout) {
  const Deadline deadline(timeout);
  for (size_t i = 0; i < op.works.size(); ++i) {
    if (i == 0 && !op.is_send) {
      DT_RETURN_IF_ERROR(WaitForHead(op, deadline.left(), timeout));
    } else {
      DT_RETURN_IF_ERROR(WaitForWork(op, op.works[i], deadline.left(), timeout));
    }
  }
  return {};
}

Status C10dTransport::WaitForHead(Operation& op, Duration left, Duration timeout) {
  if (op.head_here) return {};
  DT_RETURN_IF_ERROR(WaitForWork(op, op.works[0], left, timeout));
  op.head_here = true;
  return TakeHeadIn(op);
}

Status C10dTransport::WaitForWork(const Operation& op, const c10::intrusive_ptr<c10d::Work>& work,
                                  Duration left, Duration timeout) {
  {
    const std::lock_guard lock(abort_mutex_);
    if (aborted_) return Aborted("{}: the transport was aborted", Describe(op));
    waiting_ = work;
  }
  // False is the answer to an abort.
  Result<bool> done = FenceResult(Describe(op), [&] { return work->wait(ToMillis(left)); });
  const std::lock_guard lock(abort_mutex_);
  waiting_.reset();
  if (aborted_) return Aborted("{}: the transport was aborted", Describe(op));
  if (!done.ok() && done.status().code() == StatusCode::kDeadlineExceeded) {
    return DeadlineExceeded("{}: deadline of {:.1f} s passed", Describe(op), ToSeconds(timeout));
  }
  return done.status();
}

// Checks a received head and puts its payload in place.
Status C10dTransport::TakeHeadIn(Operation& op) {
  Header header;
  std::memcpy(&header, op.head.get(), sizeof(header));
  if (header.magic != kMagic) return DataLoss("{}: the message has no header", Describe(op));
  if (header.bytes != op.bytes) {
    return DataLoss("{}: {} bytes were sent, {} are expected", Describe(op), header.bytes,
                    op.bytes);
  }
  const size_t tail = op.bytes % kUnit;
  std::memcpy(op.data + (op.bytes - tail), op.head.get() + sizeof(header), tail);
  return {};
}

void C10dTransport::Abort() {
  const std::lock_guard lock(abort_mutex_);
  aborted_ = true;
  if (waiting_ != nullptr) {
    const Status status = Fence("abort", [&] { waiting_->abort(); });
    static_cast<void>(status.ok());
  }
}

}  // namespace dynatrain::bridge
