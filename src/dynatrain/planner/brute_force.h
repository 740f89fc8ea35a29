// The least that any plan can move, element by element and without any planner: the oracle of tests
// and of the demo's validation.
#ifndef DYNATRAIN_PLANNER_BRUTE_FORCE_H_
#define DYNATRAIN_PLANNER_BRUTE_FORCE_H_

#include "dynatrain/base/types.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

// Sum over ranks of the bytes of new shards that the rank does not hold in `from`. Both maps are of
// one catalog. Uses one byte of memory per element of the largest tensor, and time for each element
// of each rank in both maps.
ByteCount BruteForceMovedBytes(const vps::ShardMap& from, const vps::ShardMap& to);

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_BRUTE_FORCE_H_
