// Any bytes as a topology file: refused, or one in which every rank is on exactly one node.
#include <cstdint>
#include <set>

#include "dynatrain/base/check.h"
#include "dynatrain/planner/topology.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dynatrain;
  const auto topology =
      planner::ParseTopology(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!topology.ok()) {
    DT_CHECK(!topology.status().message().empty());
    return 0;
  }
  DT_CHECK(topology->Validate().ok());
  DT_CHECK(topology->num_ranks().has_value() && *topology->num_ranks() > 0);
  if (*topology->num_ranks() > 4096) return 0;
  std::set<int32_t> nodes;
  for (RankId rank = 0; rank < *topology->num_ranks(); ++rank) {
    DT_CHECK(topology->CheckRank(rank).ok());
    nodes.insert(topology->NodeOf(rank));
  }
  DT_CHECK(static_cast<int32_t>(nodes.size()) == topology->nodes);
  DT_CHECK(*nodes.begin() == 0 && *nodes.rbegin() == topology->nodes - 1);
  DT_CHECK(!topology->CheckRank(*topology->num_ranks()).ok());
  return 0;
}
