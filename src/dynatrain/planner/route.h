// Route: what one rank keeps, sends and receives when state goes from one shard map to another. Each rank
// computes its own route alone; the routes of all ranks fit together because they are one pure function.
//
// Worked example. A [4, 8] matrix, split on axis 0, goes from TP2 (ranks 0, 1) to TP4 (ranks 0..3):
//
//   old   rank 0: [0:2, 0:8]   rank 1: [2:4, 0:8]
//   new   rank 0: [0:1, 0:8]   rank 1: [1:2, 0:8]   rank 2: [2:3, 0:8]   rank 3: [3:4, 0:8]
//   pieces (old box ∩ new box): [0:1] [1:2] held by {0}, needed by {0}, {1}; [2:3] [3:4] held by {1}, needed by {2}, {3}
//   rank 0: keeps [0:1], sends [1:2] to 1        rank 1: receives [1:2] from 0, sends [2:3] to 2, [3:4] to 3
//   rank 2: receives [2:3] from 1                rank 3: receives [3:4] from 1
//
// A piece with holders H and needers N (both from the shard maps, as products): a needer in H keeps. Needer number i of N
// that is not in H takes it from its near holders — those on its own node if there are any, else all — number
// (ordinal * |N| + i) mod |near|, where ordinal counts the pieces with equal (H, N) in (tensor, box) order. Every rank of H
// or N sees all pieces with that (H, N), so both ends agree without talking.
#ifndef DYNATRAIN_PLANNER_ROUTE_H_
#define DYNATRAIN_PLANNER_ROUTE_H_

#include <cstdint>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

// A region of one state tensor inside exactly one old shard and one new shard (of the ranks concerned).
struct Piece {
  vps::TensorId tensor;
  vps::Box box;
  friend bool operator==(const Piece&, const Piece&) = default;
  friend auto operator<=>(const Piece&, const Piece&) = default;
};

struct Transfer {
  Piece piece;
  RankId peer;  // receiver of a send, sender of a receive
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// All lists in (tensor, box) order; transfers of equal piece by peer.
struct Route {
  RankId rank = 0;
  std::vector<Piece> keeps;
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  ByteCount kept_bytes = 0;
  ByteCount sent_bytes = 0;
  ByteCount received_bytes = 0;  // the sum over ranks is moved_bytes: minimal for the given roles
};

// The route of `rank`. Both maps must be of catalogs with equal fingerprints. Fails (kDataLoss, naming tensor and
// box) if nobody of `from` holds something that `rank` needs. Cost: the rank's own pieces, not the world.
Result<Route> PlanRoute(const vps::ShardMap& from, const vps::ShardMap& to, const Topology& topology, RankId rank);

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_ROUTE_H_
