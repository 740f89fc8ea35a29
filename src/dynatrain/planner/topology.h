// Topology: which ranks share a node and how fast the links are. Pure data, the same on every rank.
#ifndef DYNATRAIN_PLANNER_TOPOLOGY_H_
#define DYNATRAIN_PLANNER_TOPOLOGY_H_

#include <cstdint>
#include <string>

#include "dynatrain/base/types.h"

namespace dynatrain::planner {

// Nodes of equal size; rank r is on node r / ranks_per_node. Rates in bytes per second and direction.
struct Topology {
  std::string name = "local";
  int32_t ranks_per_node = 1 << 20;       // default: everybody on one node
  double intra_node_bytes_per_s = 4e9;    // into or out of one rank, from ranks of its node
  double inter_node_bytes_per_s = 1e9;    // into or out of one node

  int32_t NodeOf(RankId rank) const { return rank / ranks_per_node; }
  uint64_t Fingerprint() const;
};

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_TOPOLOGY_H_
