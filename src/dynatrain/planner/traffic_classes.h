// TrafficClass: all bytes with the same holders and the same needers — what bounds, roles and
// source tables are computed from, without looking at single ranks.
#ifndef DYNATRAIN_PLANNER_TRAFFIC_CLASSES_H_
#define DYNATRAIN_PLANNER_TRAFFIC_CLASSES_H_

#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

struct TrafficClass {
  vps::HolderSet holders;
  vps::HolderSet needers;
  ByteCount bytes = 0;
  std::vector<ByteCount> pieces;  // in (tensor, box) order; filled on request
};

// In the order of (holders, needers). kDataLoss, naming tensor and box, where `to` needs what
// nobody of `from` holds. Cost: the pieces between the two maps, however many ranks share them.
Result<std::vector<TrafficClass>> ClassesBetween(const vps::ShardMap& from, const vps::ShardMap& to,
                                                 bool with_pieces = false);

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_TRAFFIC_CLASSES_H_
