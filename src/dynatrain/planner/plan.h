// Plan: a whole change of layout — roles, the routes of all ranks, their figures — and a cache of
// plans.
#ifndef DYNATRAIN_PLANNER_PLAN_H_
#define DYNATRAIN_PLANNER_PLAN_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/planner/bound.h"
#include "dynatrain/planner/roles.h"
#include "dynatrain/planner/route.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

struct PlanRequest {
  std::shared_ptr<const vps::StateCatalog> catalog;
  vps::Layout from;
  vps::Layout to;
  Topology topology;
  RolePolicy roles = RolePolicy::kIdentity;
  PlanOptions options;
};

struct Plan {
  vps::Layout to;  // with its roles
  std::shared_ptr<const vps::LayoutShardMap> from_map;
  std::shared_ptr<const vps::LayoutShardMap> to_map;
  RoleAssignment roles;
  std::vector<RankId> ranks;  // old and new ones, ascending
  std::vector<Route> routes;  // of `ranks`
  LowerBound bound;
  PlanTotals totals;
};

// Plans for all ranks. Errors are those of layouts, topology and routes.
Result<std::shared_ptr<const Plan>> MakePlan(const PlanRequest& request);

// The plans of the last requests, by (catalog, layouts, roles, topology, options). Any thread.
class PlanCache {
 public:
  explicit PlanCache(size_t capacity) : capacity_(capacity) {}
  // From the cache, or made and put there; the longest unused plan goes when there is no room.
  Result<std::shared_ptr<const Plan>> Get(const PlanRequest& request);
  size_t size() const;

 private:
  struct Key {
    const vps::StateCatalog* catalog;  // kept alive by the entry's maps
    uint64_t from;
    uint64_t to;
    uint64_t topology;
    uint64_t options;
    RolePolicy roles;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Entry {
    Key key;
    std::shared_ptr<const Plan> plan;
  };

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_PLAN_H_
