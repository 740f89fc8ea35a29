// Roles: which rank takes which position of the new layout.
//
// `identity` leaves the layout's own order. `free` looks for the map that moves least, among these:
// the positions whose identity ranks share a node are a block; a block goes whole to one node, two
// blocks never to the same; inside a node, a block's positions go to any of the node's ranks. So
// groups that lie inside a node still do.
//
// Costs in bytes, compared in this order: the fullest node in (what its ranks need and none of them
// held, once), the fullest rank in, the total into all ranks, the number of ranks whose position is
// not the identity's. Ties: blocks in the order of their first positions, the lexicographically
// smallest list of ranks. Exact: bottleneck assignments inside each (block, node), then of blocks
// to nodes; no floating point.
#ifndef DYNATRAIN_PLANNER_ROLES_H_
#define DYNATRAIN_PLANNER_ROLES_H_

#include <string_view>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

enum class RolePolicy : uint8_t { kIdentity, kFree };
Result<RolePolicy> ParseRolePolicy(std::string_view name);  // "identity", "free"

struct RoleCosts {
  ByteCount max_node_in = 0;
  ByteCount max_rank_in = 0;
  ByteCount total = 0;
  int64_t changed = 0;  // ranks that are not at the identity's position
  friend auto operator<=>(const RoleCosts&, const RoleCosts&) = default;
};

struct RoleAssignment {
  std::vector<RankId> ranks;  // by position of the new layout
  RoleCosts costs;
  RoleCosts identity_costs;
};

// The ranks that may take part, ascending: those of the new layout if it names any, else they and
// those of the old layout.
std::vector<RankId> CandidateRanks(const vps::Layout& from, const vps::Layout& to);

// The best roles of `to`'s layout, whose ranks are the identity, given what the ranks hold in
// `from`. `candidates` ascend and hold the ranks of `to`. Cost: the pieces between the maps and the
// cube of the number of nodes and of the ranks of a node; deterministic.
Result<RoleAssignment> AssignRoles(const vps::ShardMap& from, const vps::LayoutShardMap& to,
                                   const Topology& topology, const std::vector<RankId>& candidates);

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_ROLES_H_
