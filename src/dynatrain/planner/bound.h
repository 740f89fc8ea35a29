// What no plan can beat, and what a plan does: the figures of a change of layout, over all ranks.
#ifndef DYNATRAIN_PLANNER_BOUND_H_
#define DYNATRAIN_PLANNER_BOUND_H_

#include <map>
#include <utility>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/planner/route.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/planner/traffic_classes.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

// Bytes that must leave some ranks or nodes together, so that one of them sends a `count`-th of it.
struct Outflow {
  ByteCount bytes = 0;
  int64_t count = 1;
  double each() const { return static_cast<double>(bytes) / static_cast<double>(count); }
};

// For the roles of the two maps, whoever sends what, even if it was passed on by ranks and nodes
// that have no use for it. A rank must take in what it did not hold; a node must take in, once, what
// its ranks need and none of them held. What only some ranks held and others need must leave those,
// once: the rest may be passed on by who has it by then. Likewise what only some nodes' ranks held.
struct LowerBound {
  ByteCount bytes = 0;             // into all ranks together
  ByteCount cross_node_bytes = 0;  // into all nodes together
  std::map<RankId, ByteCount> rank_in;
  std::map<int32_t, ByteCount> node_in;
  // The fullest, of sets that are the holders of something.
  Outflow rank_out;  // of single ranks
  Outflow node_out;  // of all the nodes that hold something together
  ByteCount max_rank_in() const;
  ByteCount max_node_in() const;
  // The largest of max_rank_in and rank_out over a rank's link, max_node_in and node_out over a
  // node's NICs.
  double Seconds(const Topology& topology) const;
};
LowerBound BoundOf(const std::vector<TrafficClass>& classes, const Topology& topology);
Result<LowerBound> ComputeLowerBound(const vps::ShardMap& from, const vps::ShardMap& to,
                                     const Topology& topology);

// The largest of some ranks or nodes; the first of equals.
struct Fullest {
  int32_t id = -1;
  ByteCount bytes = 0;
};

struct PlanTotals {
  ByteCount moved_bytes = 0;  // received for the first time, each byte once per rank that needs it
  ByteCount wire_bytes = 0;   // sent, relays included
  ByteCount relayed_bytes = 0;  // of them, second hops inside nodes
  ByteCount kept_bytes = 0;
  ByteCount derived_bytes = 0;
  ByteCount cross_node_bytes = 0;
  Fullest rank_in, rank_out, node_in, node_out;
  ByteCount lower_bound_bytes = 0;
  double bound_seconds = 0;
  double fullest_link_seconds = 0;  // the fullest rank or node link, as planned
};
// `bound` is without derived parameters; a plan that derives may be below it.
PlanTotals TotalsOf(const std::vector<Route>& routes, const vps::StateCatalog& catalog,
                    const Topology& topology, const LowerBound& bound);

// Bytes by (sender, receiver), relays included; pairs that send nothing are left out.
using Traffic = std::map<std::pair<RankId, RankId>, ByteCount>;
Traffic TrafficOf(const std::vector<Route>& routes, const vps::StateCatalog& catalog);

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_BOUND_H_
