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

}  // namespace

ByteCount LowerBound::max_rank_in() const { return Largest(rank_in); }
ByteCount LowerBound::max_node_in() const { return Largest(node_in); }

double LowerBound::Seconds(const Topology& topology) const {
  return std::max(static_cast<double>(max_rank_in()) / topology.intra_node_bytes_per_s,
                  static_cast<double>(max_node_in()) / topology.inter_node_bytes_per_s);
}

LowerBound BoundOf(const std::vector<TrafficClass>& classes, const Topology& topology) {
  LowerBound bound;
  for (const TrafficClass& cls : classes) {
    std::set<int32_t> nodes;
    for (int64_t i = 0; i < cls.holders.size(); ++i) {
      nodes.insert(topology.NodeOf(cls.holders.At(i)));
    }
    for (int64_t i = 0; i < cls.needers.size(); ++i) {
      const RankId rank = cls.needers.At(i);
      if (cls.holders.Contains(rank)) continue;
      bound.bytes += cls.bytes;
      bound.rank_in[rank] += cls.bytes;
      if (!nodes.insert(topology.NodeOf(rank)).second) continue;
      bound.cross_node_bytes += cls.bytes;
      bound.node_in[topology.NodeOf(rank)] += cls.bytes;
    }
  }
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
