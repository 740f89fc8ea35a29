// SourceTable: where the turns of the source choice start, for maps that are not products —
// survivors of a loss, checkpoints on disk — where the closed form alone may meet one holder too
// often.
//
// Solved once, then sent and hashed with the other inputs of a switch. The classes (holder set,
// needer set) are taken from the largest to the smallest, each started where the fullest source so
// far stays least full. Classes that are not in the table start as without it.
#ifndef DYNATRAIN_PLANNER_SOURCE_TABLE_H_
#define DYNATRAIN_PLANNER_SOURCE_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "dynatrain/base/status.h"
#include "dynatrain/planner/route.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

class SourceTable {
 public:
  // Cost: all pieces between the two maps. `options.table` is not read.
  static Result<std::shared_ptr<const SourceTable>> Solve(const vps::ShardMap& from,
                                                          const vps::ShardMap& to,
                                                          const Topology& topology,
                                                          const PlanOptions& options = {});

  std::optional<int64_t> StartOf(const vps::HolderSet& holders,
                                 const vps::HolderSet& needers) const;
  size_t size() const { return starts_.size(); }
  uint64_t Fingerprint() const;

 private:
  std::map<uint64_t, int64_t> starts_;  // by hash of the ranks of both sets
};

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_SOURCE_TABLE_H_
