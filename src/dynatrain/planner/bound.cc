#include "dynatrain/planner/bound.h"

#include <algorithm>
#include <set>

namespace dynatrain::planner {
namespace {

template <class Id>
ByteCount Largest(const std::map<Id, ByteCount>& loads) {
  ByteCount largest = 0;
  for (const auto& [id, bytes] : loads) largest = std::max(largest, bytes);
  return largest;
}

Fullest FullestOf(const std::map<int32_t, ByteCount>& loads) {
  Fullest fullest;
  for (const auto& [id, bytes] : loads) {
    if (bytes > fullest.bytes) fullest = {id, bytes};
  }
  return fullest;
}

using Nodes = std::vector<int32_t>;  // ascending

bool Within(const Nodes& nodes, const Nodes& set) {
  return std::includes(set.begin(), set.end(), nodes.begin(), nodes.end());
}

// Bytes by the nodes that hold them and the nodes that need them.
using NodeClasses = std::map<std::pair<Nodes, Nodes>, ByteCount>;

// Any set of nodes gives a bound; those that hold something together give the highest ones.
Outflow FullestOutOfNodes(const NodeClasses& classes) {
  std::set<Nodes> candidates;
  for (const auto& [ends, bytes] : classes) candidates.insert(ends.first);
  Outflow fullest;
  for (const Nodes& set : candidates) {
    Outflow out{.bytes = 0, .count = static_cast<int64_t>(set.size())};
    for (const auto& [ends, bytes] : classes) {
      if (Within(ends.first, set) && !Within(ends.second, set)) out.bytes += bytes;
    }
    if (out.each() > fullest.each()) fullest = out;
  }
  return fullest;
}

Nodes NodesOf(const vps::HolderSet& ranks, const Topology& topology) {
  std::set<int32_t> nodes;
  for (const RankId rank : ranks.List()) nodes.insert(topology.NodeOf(rank));
  return {nodes.begin(), nodes.end()};
}

}  // namespace

ByteCount LowerBound::max_rank_in() const { return Largest(rank_in); }
ByteCount LowerBound::max_node_in() const { return Largest(node_in); }

double LowerBound::Seconds(const Topology& topology) const {
  const double rank = std::max(static_cast<double>(max_rank_in()), rank_out.each());
  const double node = std::max(static_cast<double>(max_node_in()), node_out.each());
  return std::max(rank / topology.intra_node_bytes_per_s, node / topology.inter_node_bytes_per_s);
}

LowerBound BoundOf(const std::vector<TrafficClass>& classes, const Topology& topology) {
  LowerBound bound;
  std::map<RankId, ByteCount> rank_out;
  NodeClasses by_nodes;
  for (const TrafficClass& cls : classes) {
    const Nodes sources = NodesOf(cls.holders, topology);
    const Nodes targets = NodesOf(cls.needers, topology);
    if (!Within(targets, sources)) by_nodes[{sources, targets}] += cls.bytes;
    bool moves = false;
    std::set<int32_t> nodes(sources.begin(), sources.end());
    for (const RankId rank : cls.needers.List()) {
      if (cls.holders.Contains(rank)) continue;
      moves = true;
      bound.bytes += cls.bytes;
      bound.rank_in[rank] += cls.bytes;
      if (!nodes.insert(topology.NodeOf(rank)).second) continue;
      bound.cross_node_bytes += cls.bytes;
      bound.node_in[topology.NodeOf(rank)] += cls.bytes;
    }
    if (moves && cls.holders.size() == 1) rank_out[cls.holders.At(0)] += cls.bytes;
  }
  bound.rank_out.bytes = Largest(rank_out);
  bound.node_out = FullestOutOfNodes(by_nodes);
  return bound;
}

Result<LowerBound> ComputeLowerBound(const vps::ShardMap& from, const vps::ShardMap& to,
                                     const Topology& topology) {
  DT_ASSIGN_OR_RETURN(const std::vector<TrafficClass> classes, ClassesBetween(from, to));
  return BoundOf(classes, topology);
}

Traffic TrafficOf(const std::vector<Route>& routes, const vps::StateCatalog& catalog) {
  Traffic traffic;
  for (const Route& route : routes) {
    for (const auto* list : {&route.sends, &route.relay_sends}) {
      for (const Transfer& t : *list) {
        traffic[{route.rank, t.peer}] +=
            t.piece.box.elems() * vps::ElemBytes(catalog.tensor(t.piece.tensor).dtype);
      }
    }
  }
  return traffic;
}

PlanTotals TotalsOf(const std::vector<Route>& routes, const vps::StateCatalog& catalog,
                    const Topology& topology, const LowerBound& bound) {
  PlanTotals totals;
  std::map<int32_t, ByteCount> rank_in;
  std::map<int32_t, ByteCount> rank_out;
  std::map<int32_t, ByteCount> node_in;
  std::map<int32_t, ByteCount> node_out;
  for (const auto& [pair, bytes] : TrafficOf(routes, catalog)) {
    rank_out[pair.first] += bytes;
    rank_in[pair.second] += bytes;
    const int32_t source = topology.NodeOf(pair.first);
    const int32_t target = topology.NodeOf(pair.second);
    totals.wire_bytes += bytes;
    if (source == target) continue;
    totals.cross_node_bytes += bytes;
    node_out[source] += bytes;
    node_in[target] += bytes;
  }
  for (const Route& route : routes) {
    totals.moved_bytes += route.received_bytes;
    totals.kept_bytes += route.kept_bytes;
    totals.derived_bytes += route.derived_bytes;
    for (const Transfer& t : route.relay_receives) {
      totals.relayed_bytes +=
          t.piece.box.elems() * vps::ElemBytes(catalog.tensor(t.piece.tensor).dtype);
    }
  }
  totals.rank_in = FullestOf(rank_in);
  totals.rank_out = FullestOf(rank_out);
  totals.node_in = FullestOf(node_in);
  totals.node_out = FullestOf(node_out);
  totals.lower_bound_bytes = bound.bytes;
  totals.bound_seconds = bound.Seconds(topology);
  const auto rank = static_cast<double>(std::max(totals.rank_in.bytes, totals.rank_out.bytes));
  const auto node = static_cast<double>(std::max(totals.node_in.bytes, totals.node_out.bytes));
  totals.fullest_link_seconds =
      std::max(rank / topology.intra_node_bytes_per_s, node / topology.inter_node_bytes_per_s);
  return totals;
}

}  // namespace dynatrain::planner
