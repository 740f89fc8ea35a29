// A transport around another one, with faults as data: what a bad wire, a bug or a dying process
// would do.
#ifndef DYNATRAIN_TRANSPORT_FAULTY_H_
#define DYNATRAIN_TRANSPORT_FAULTY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dynatrain/base/clock.h"
#include "dynatrain/transport/transport.h"

namespace dynatrain::transport {

struct Fault {
  enum class Kind {
    kFlipBit,    // one bit of the message, drawn from `seed`
    kDrop,       // never sent; the sender is told that it was
    kDuplicate,  // sent twice
    kTruncate,   // the last byte is cut off
    kReorder,    // sent after the next message to the same peer, or when it is waited on
    kDelay,      // sent after `delay`
    kFail,       // the operation fails with kUnavailable
    kDie         // the transport aborts itself and calls `on_death`
  };
  Kind kind = Kind::kFlipBit;
  int64_t at = 0;  // counts non-empty sends for the first six, all posted operations for kFail and
                   // kDie; from 0
  uint64_t seed = 0;
  Duration delay{};
};

// Same contract and threads as the wrapped transport.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, std::vector<Fault> faults,
                  std::function<void()> on_death = {});
  ~FaultyTransport() override;

  RankId rank() const override { return inner_->rank(); }
  const std::vector<RankId>& ranks() const override { return inner_->ranks(); }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  std::string name() const override { return inner_->name() + "+faults"; }
  Result<OpId> Send(RankId to, Tag tag, ConstByteSpan data) override;
  Result<OpId> Receive(RankId from, Tag tag, ByteSpan data) override;
  Status Wait(OpId op, Duration timeout) override;
  void Abort() override { inner_->Abort(); }

  int64_t sends() const { return num_sends_; }            // non-empty ones so far
  int64_t operations() const { return num_operations_; }  // all posted so far

 private:
  struct Held;
  struct State;

  Status FailNow(int64_t operation);
  Status Release();
  Result<OpId> SendFaulty(const Fault& fault, RankId to, Tag tag, ConstByteSpan data);

  std::unique_ptr<State> state_;  // copies of messages: they outlive the wrapped transport
  std::unique_ptr<Transport> inner_;
  const std::vector<Fault> faults_;
  const std::function<void()> on_death_;
  int64_t num_sends_ = 0;
  int64_t num_operations_ = 0;
};

}  // namespace dynatrain::transport

#endif  // DYNATRAIN_TRANSPORT_FAULTY_H_
