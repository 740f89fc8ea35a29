// Route: what one rank keeps, sends and receives when state goes from one shard map to another.
// Each rank computes its own route alone; the routes of all ranks fit together because they are one
// pure function.
//
// Worked example. A [4, 8] matrix, split on axis 0, goes from TP2 (ranks 0, 1) to TP4 (ranks 0..3):
//
//   old   rank 0: [0:2, 0:8]   rank 1: [2:4, 0:8]
//   new   rank 0: [0:1, 0:8]   rank 1: [1:2, 0:8]   rank 2: [2:3, 0:8]   rank 3: [3:4, 0:8]
//   pieces (old box ∩ new box): [0:1] held by {0}, needed by {0}; [1:2] held by {0}, needed by {1};
//                               [2:3] held by {1}, needed by {2}; [3:4] held by {1}, needed by {3}
//   rank 0: keeps [0:1], sends [1:2] to 1
//   rank 1: receives [1:2] from 0, sends [2:3] to 2, [3:4] to 3
//   rank 2: receives [2:3] from 1                rank 3: receives [3:4] from 1
//
// Who sends a piece with holders H and needers N is a closed form of (piece, H, N), see sources.h:
// a needer in H keeps; a node with a holder serves itself; large pieces are cut into stripes that
// come from different holders, small ones take turns. With `relays`, stripes enter a node once:
//
//   a piece held by rank 0 on node A, needed by ranks 8, 9 on node B, in two stripes s0, s1:
//   0 sends s0 to 8 and s1 to 9 (A to B carries the piece once); 8 relays s0 to 9, 9 relays s1 to 8
//
// A piece in one stripe is so a broadcast from its entry rank, one in several stripes a scatter
// over the node's ranks and a gather inside it. Every rank of H or N sees all pieces with that (H,
// N), so all agree without talking.
#ifndef DYNATRAIN_PLANNER_ROUTE_H_
#define DYNATRAIN_PLANNER_ROUTE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

class SourceTable;

// A region of one state tensor inside exactly one old shard and one new shard (of the ranks
// concerned).
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

// A whole piece, and the number of its class: those of equal holders and needers (and derivers). All
// ranks among these have the same pieces in it; its number means something inside one route alone.
struct ClassedPiece {
  Piece piece;
  int32_t cls;
};

// All lists in (tensor, box) order; transfers of equal piece by peer.
struct Route {
  RankId rank = 0;
  // All that the rank holds or needs, disjoint: each keep, transfer and derived piece is one of
  // these or, as a stripe, a part of one.
  std::vector<ClassedPiece> pieces;
  std::vector<Piece> keeps;
  std::vector<Transfer> sends;     // from old shards
  std::vector<Transfer> receives;  // from old shards of the peer
  // Second hop, inside a node: a relayed piece is among the relaying rank's receives, and is read
  // from its new shards once it is there. Empty unless PlanOptions::relays.
  std::vector<Transfer> relay_sends;
  std::vector<Transfer> relay_receives;
  // Parameters that this rank computes from its own new master instead of receiving them. Empty
  // unless PlanOptions::derive.
  std::vector<Piece> derives;
  ByteCount kept_bytes = 0;
  ByteCount sent_bytes = 0;      // relayed ones among them
  ByteCount received_bytes = 0;  // the sum over ranks is moved_bytes: minimal for the given roles
  ByteCount derived_bytes = 0;
};

// Equal on all ranks of a switch.
struct PlanOptions {
  // Stripes enter a node once and are passed on inside it.
  bool relays = false;
  // Half-precision parameters are recomputed where the rank has their fp32 master in the new
  // layout; exact when the parameters are the rounded masters, as they are between steps.
  bool derive = false;
  // A piece is cut into stripes of at least this many bytes.
  ByteCount stripe_bytes = ByteCount{256} << 10;
  // Balances irregular maps; may be null. See source_table.h.
  std::shared_ptr<const SourceTable> table = {};
  uint64_t Fingerprint() const;
};

// The route of `rank`. Both maps must be of catalogs with equal fingerprints. Fails (kDataLoss,
// naming tensor and box) if nobody of `from` holds something that `rank` needs. Cost: the rank's
// own pieces, not the world.
Result<Route> PlanRoute(const vps::ShardMap& from, const vps::ShardMap& to,
                        const Topology& topology, RankId rank, const PlanOptions& options = {});

// What one rank passes on to the same ranks of its node: a broadcast from `root` of these pieces.
struct Multicast {
  RankId root;
  std::vector<RankId> members;  // ascending, without the root
  std::vector<Piece> pieces;
};
// The multicasts of which the route's rank is the root, by members.
std::vector<Multicast> MulticastsFrom(const Route& route);

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_ROUTE_H_
