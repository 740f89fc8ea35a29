#include "dynatrain/planner/plan.h"

#include <algorithm>
#include <set>

namespace dynatrain::planner {

Result<std::shared_ptr<const Plan>> MakePlan(const PlanRequest& request) {
  const Topology& topology = request.topology;
  DT_RETURN_IF_ERROR(topology.Validate());
  for (const vps::Layout* layout : {&request.from, &request.to}) {
    for (const RankId rank : layout->Ranks()) DT_RETURN_IF_ERROR(topology.CheckRank(rank));
  }
  auto plan = std::make_shared<Plan>();
  plan->to = request.to;
  DT_ASSIGN_OR_RETURN(plan->from_map, vps::LayoutShardMap::Make(request.catalog, request.from));
  DT_ASSIGN_OR_RETURN(plan->to_map, vps::LayoutShardMap::Make(request.catalog, request.to));
  plan->roles.ranks = plan->to_map->Ranks();
  if (request.roles == RolePolicy::kFree) {
    DT_ASSIGN_OR_RETURN(plan->roles, AssignRoles(*plan->from_map, *plan->to_map, topology,
                                                 CandidateRanks(request.from, request.to)));
    if (plan->roles.ranks != plan->to_map->Ranks()) {
      plan->to.ranks = plan->roles.ranks;
      DT_ASSIGN_OR_RETURN(plan->to_map, vps::LayoutShardMap::Make(request.catalog, plan->to));
    }
  }
  std::set<RankId> ranks;
  for (const vps::LayoutShardMap* map : {plan->from_map.get(), plan->to_map.get()}) {
    for (const RankId rank : map->Ranks()) ranks.insert(rank);
  }
  plan->ranks.assign(ranks.begin(), ranks.end());
  for (const RankId rank : plan->ranks) {
    DT_ASSIGN_OR_RETURN(Route route,
                        PlanRoute(*plan->from_map, *plan->to_map, topology, rank, request.options));
    plan->routes.push_back(std::move(route));
  }
  DT_ASSIGN_OR_RETURN(plan->bound, ComputeLowerBound(*plan->from_map, *plan->to_map, topology));
  plan->totals = TotalsOf(plan->routes, *request.catalog, topology, plan->bound);
  return std::shared_ptr<const Plan>(std::move(plan));
}

Result<std::shared_ptr<const Plan>> PlanCache::Get(const PlanRequest& request) {
  const Key key{request.catalog.get(),         request.from.Fingerprint(),
                request.to.Fingerprint(),      request.topology.Fingerprint(),
                request.options.Fingerprint(), request.roles};
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(entries_.begin(), entries_.end(),
                               [&](const Entry& entry) { return entry.key == key; });
  if (it != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, it);
    return entries_.front().plan;
  }
  DT_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan, MakePlan(request));
  entries_.push_front({key, plan});
  if (entries_.size() > capacity_) entries_.pop_back();
  return plan;
}

size_t PlanCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace dynatrain::planner
