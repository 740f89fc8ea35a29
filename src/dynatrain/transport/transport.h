// Transport: tagged two-sided messages between ranks, asynchronous, every wait with a deadline.
//
// Contract, the same for all implementations (the conformance suite is its executable form):
//  - Peers are RankIds, never positions in a group. A message to or from a rank outside `ranks()`
//  is an error, and so is one
//    to oneself.
//  - A send matches a receive of the same (source, destination, tag); equal ones match in the order
//  of posting. Lengths
//    must be equal: a mismatch is kDataLoss at the receiver and an error or success at the sender,
//    never a crash.
//  - Rendezvous is allowed: a send may complete only once its receive is posted. Post receives
//  before sends.
//  - Buffers: the caller owns the memory and leaves it alone (send: unmodified, receive: untouched)
//  until the operation was
//    waited on with Ok, or the transport was destroyed. Completion of a send means only that the
//    buffer may be reused.
//  - Zero bytes: completes without touching the wire; both sides may post or omit it only together.
//  - Errors name the pair: "receive 3 <- 1 tag 7: deadline of 2.0 s passed". After the first failed
//  operation the
//    transport is dead: every later call fails at once with kUnavailable. It is discarded, never
//    reused.
//  - One thread at a time may call; Abort() alone may come from any thread.
#ifndef DYNATRAIN_TRANSPORT_TRANSPORT_H_
#define DYNATRAIN_TRANSPORT_TRANSPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::transport {

// Any value below kTagLimit: transports use the bits above for themselves (Gloo's tags have 31).
using Tag = uint32_t;
inline constexpr Tag kTagLimit = Tag{1} << 20;

// Names a posted operation; valid until waited on. Ids are not reused.
using OpId = uint64_t;

struct Capabilities {
  bool rendezvous = true;             // a send may block until the receive is posted
  ByteCount max_message = INT64_MAX;  // longer messages must be cut by the caller
};

// SEAM.
class Transport {
 public:
  virtual ~Transport() =
      default;  // cancels what is outstanding; buffers are the caller's again afterwards

  virtual RankId rank() const = 0;
  virtual const std::vector<RankId>& ranks() const = 0;  // everybody in it, itself included
  virtual Capabilities capabilities() const = 0;
  virtual std::string name() const = 0;  // "local", "gloo"

  // Starts an operation and returns at once.
  virtual Result<OpId> Send(RankId to, Tag tag, ConstByteSpan data) = 0;
  virtual Result<OpId> Receive(RankId from, Tag tag, ByteSpan data) = 0;

  // Until the operation is complete or `timeout` from now has passed.
  virtual Status Wait(OpId op, Duration timeout) = 0;

  // Makes every present and later wait of this transport fail soon with kAborted. Any thread.
  virtual void Abort() = 0;
};

}  // namespace dynatrain::transport

#endif  // DYNATRAIN_TRANSPORT_TRANSPORT_H_
