// Digest: a number of the whole logical state that is the same in every layout, and the replica
// check.
//
// Digest of a tensor = sum mod 2^64 over its elements of h(tensor, kind, dtype, logical row-major
// index, raw bits). Bits count, not values; padding does not; an element that many ranks hold
// counts once (its first holder adds it). Replica check: the m holders of a part weight their sums
// over it with keyed coefficients that add up to zero mod p = 2^61 - 1; the job-wide sum is zero
// iff (up to chance 1/p) all holders have the same bits.
#ifndef DYNATRAIN_VPS_DIGEST_H_
#define DYNATRAIN_VPS_DIGEST_H_

#include <cstdint>
#include <functional>
#include <span>

#include "dynatrain/base/types.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {

// What one rank contributes; job-wide: Combine of all ranks.
struct StateDigest {
  uint64_t digest = 0;   // mod 2^64
  uint64_t replica = 0;  // mod 2^61 - 1; job-wide 0 = replicas agree
  friend bool operator==(const StateDigest&, const StateDigest&) = default;
};
StateDigest Combine(const StateDigest& a, const StateDigest& b);

// What holder `index` of the `count` holders of a part adds to a replica check, `value` being a hash
// of the part's bits. The terms of all holders sum to zero mod 2^61 - 1 iff (up to chance 1/p) their
// values are equal. `key`: equal on all ranks of one check.
uint64_t ReplicaTerm(uint64_t key, TensorId tensor, const Box& part, int64_t index, int64_t count,
                     uint64_t value);
uint64_t AddReplicaTerms(uint64_t a, uint64_t b);  // mod 2^61 - 1

// The bytes of one buffer of the rank, valid during the call.
using BufferReader = std::function<ConstByteSpan(BufferIndex)>;

// The contribution of `rank`, from its own shards alone. `key` seeds the coefficients: equal on all
// ranks of one check. Any thread; reads only.
StateDigest DigestOfRank(const ShardMap& map, RankId rank, const BufferReader& buffers,
                         uint64_t key);

// Oracle for tests and tools: digest of one whole dense row-major tensor.
uint64_t DigestOfTensor(const StateCatalog& catalog, TensorId tensor, ConstByteSpan dense);

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_DIGEST_H_
