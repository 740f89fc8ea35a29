// transport::Transport over one c10d Gloo group.
//
// On the wire a message of n bytes is one head message (header and the last n mod 4 KiB bytes,
// through a buffer of our own) and, received in place, messages of 4 MiB and then at most one of
// 1 to 1023 times 4 KiB. Each of these lengths has a Gloo tag of its own, and a head is always
// received into a buffer that takes the longest head: so no length that a peer may send can overrun
// a receive, which Gloo would answer by ending the process. Lengths that differ are found in the
// header. Of its own an operation takes at most the longest head and a few KiB.
#ifndef DYNATRAIN_BRIDGE_C10D_TRANSPORT_H_
#define DYNATRAIN_BRIDGE_C10D_TRANSPORT_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/bridge/worker_thread.h"
#include "dynatrain/transport/transport.h"

namespace dynatrain::bridge {

// One thread at a time; Abort() from any. Nobody else may use the group for send and receive. The
// destructor gives buffers back to the caller at once and leaves the group itself to the reaper's
// thread.
class C10dTransport final : public transport::Transport {
 public:
  // Takes `group`, whose group rank i is ranks[i]; `rank` is this process. Without `reaper` the
  // destructor destroys the group.
  C10dTransport(c10::intrusive_ptr<c10d::Backend> group, std::vector<RankId> ranks, RankId rank,
                std::shared_ptr<WorkerThread> reaper);
  ~C10dTransport() override;

  RankId rank() const override { return rank_; }
  const std::vector<RankId>& ranks() const override { return ranks_; }
  transport::Capabilities capabilities() const override { return {}; }
  std::string name() const override { return "gloo"; }

  Result<transport::OpId> Send(RankId to, transport::Tag tag, ConstByteSpan data) override;
  Result<transport::OpId> Receive(RankId from, transport::Tag tag, ByteSpan data) override;
  Status Wait(transport::OpId op, Duration timeout) override;
  void Abort() override;

 private:
  using Head = std::unique_ptr<std::byte[]>;

  struct Operation {
    bool is_send = false;
    RankId peer = 0;
    transport::Tag tag = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
    Head head;
    bool head_here = false;  // of a receive: its head was waited for and fits
    std::vector<c10::intrusive_ptr<c10d::Work>> works;  // head, then what goes in place
  };

  std::string Describe(const Operation& op) const;
  Result<transport::OpId> Start(bool is_send, RankId peer, transport::Tag tag, std::byte* data,
                                size_t bytes);
  void Post(Operation& op, int position);
  Head TakeHead();
  Status WaitForEarlierHeads(transport::OpId id, const Operation& op, Duration timeout);
  Status WaitFor(Operation& op, Duration timeout);
  Status WaitForHead(Operation& op, Duration left, Duration timeout);
  Status WaitForWork(const Operation& op, const c10::intrusive_ptr<c10d::Work>& work, Duration left,
                     Duration timeout);
  Status TakeHeadIn(Operation& op);
  Status Dead();
  Status Fail(const Status& status);

  c10::intrusive_ptr<c10d::Backend> group_;
  const std::vector<RankId> ranks_;
  const RankId rank_;
  const std::shared_ptr<WorkerThread> reaper_;
  std::map<RankId, int> positions_;
  std::map<transport::OpId, Operation> operations_;
  std::vector<Head> free_heads_;  // of the longest size
  transport::OpId next_op_ = 1;
  Status failed_;

  std::mutex abort_mutex_;  // guards the two below
  bool aborted_ = false;
  c10::intrusive_ptr<c10d::Work> waiting_;
};

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_C10D_TRANSPORT_H_
