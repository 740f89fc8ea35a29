// Whole buffers between the members of a group by plain c10d sends and receives: the rate that a
// backend gives when nothing is packed, cut, checked or put in order.
#ifndef DYNATRAIN_BRIDGE_RAW_EXCHANGE_H_
#define DYNATRAIN_BRIDGE_RAW_EXCHANGE_H_

#include <map>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::bridge {

// By group rank. Posts all receives, then all sends, in messages of at most `chunk_bytes`, and
// waits for all. Both ends of a pair must name equal lengths: Gloo ends the process of a receiver
// whose buffer is too short.
Status ExchangeRaw(c10d::Backend& group, const std::map<int, ConstByteSpan>& out,
                   const std::map<int, ByteSpan>& in, ByteCount chunk_bytes, Duration timeout);

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_RAW_EXCHANGE_H_
