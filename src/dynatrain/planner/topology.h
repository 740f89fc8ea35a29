// Topology: which ranks share a node and how fast the links are. Pure data, the same on every rank.
//
//   Topology t = *LoadTopology("a800x16");        // a preset
//   Topology t = *LoadTopology("cluster.json");   // a file
//
// The file names equal nodes by number and size, or lists the ranks of each; every rank from 0 up
// must be on exactly one node. Rates are bytes per second and direction, 1e3 to 1e15; times are
// seconds, 1e-9 to 10. intra_node_bytes_per_s must be there and, where there are several nodes,
// nic_bytes_per_s or inter_node_bytes_per_s (of all NICs together). What else is left out is as in
// `Topology` below, and `assumed` names it.
//
//   {"name": "lab", "nodes": 2, "ranks_per_node": 8, "intra_node_bytes_per_s": 2e11,
//    "nics_per_node": 4, "nic_bytes_per_s": 25e9, "latency_s": 1e-5, "message_s": 5e-6,
//    "copy_bytes_per_s": 1e12, "check_bytes_per_s": 2e12}
//   {"name": "lab", "nodes": ["0-7", "8-11", "12+13"], ...}
#ifndef DYNATRAIN_PLANNER_TOPOLOGY_H_
#define DYNATRAIN_PLANNER_TOPOLOGY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::planner {

struct Topology {
  std::string name = "local";
  int32_t ranks_per_node = 1 << 20;     // of equal nodes; default: everybody on one node
  double intra_node_bytes_per_s = 4e9;  // into or out of one rank, from ranks of its node
  double inter_node_bytes_per_s = 1e9;  // into or out of one node, over all its NICs together
  int32_t nics_per_node = 1;
  double latency_s = 10e-6;  // of one message
  // What a rank itself does, for the simulation: posting a message, copying (packing, unpacking)
  // and hashing state.
  double message_s = 5e-6;
  double copy_bytes_per_s = 8e9;
  double check_bytes_per_s = 16e9;
  // Number of nodes; 0: as many equal ones as there are ranks for.
  int32_t nodes = 0;
  // The node of each rank; empty: equal nodes, rank r on node r / ranks_per_node.
  std::vector<int32_t> node_of = {};
  // Which of latency_s, message_s, copy_bytes_per_s and check_bytes_per_s a file left out, and what
  // they are taken to be.
  std::vector<std::pair<std::string, double>> assumed = {};

  int32_t NodeOf(RankId rank) const {
    if (node_of.empty()) return rank / ranks_per_node;
    const auto listed = static_cast<int32_t>(node_of.size());
    // Ranks that are not listed are each alone; CheckRank refuses them.
    return rank < listed ? node_of[static_cast<size_t>(rank)] : nodes + (rank - listed);
  }
  // How many ranks there are; none: no limit.
  std::optional<int32_t> num_ranks() const;
  // Refuses ranks that are on no node, naming how many there are.
  Status CheckRank(RankId rank) const;
  // Sizes at least 1, rates and times within what a file may have, node_of (if any) without empty
  // nodes.
  Status Validate() const;
  uint64_t Fingerprint() const;  // of everything above but `assumed`
};

// The text of a topology file. Errors name the key, the value and what would be right.
Result<Topology> ParseTopology(std::string_view json);

// From a preset's name (a800x16, h100x16, local), else from a file (ReadTextFile).
Result<Topology> LoadTopology(const std::string& preset_or_path);

std::vector<std::string> TopologyPresetNames();

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_TOPOLOGY_H_
