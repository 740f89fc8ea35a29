#include "dynatrain/planner/topology.h"

#include <bit>

#include "dynatrain/base/hash.h"

namespace dynatrain::planner {

uint64_t Topology::Fingerprint() const {
  return Hasher()
      .Add(name)
      .Add(ranks_per_node)
      .Add(std::bit_cast<uint64_t>(intra_node_bytes_per_s))
      .Add(std::bit_cast<uint64_t>(inter_node_bytes_per_s))
      .hash();
}

}  // namespace dynatrain::planner
