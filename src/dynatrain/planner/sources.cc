#include "dynatrain/planner/sources.h"

#include <algorithm>
#include <map>

namespace dynatrain::planner {
namespace {

std::vector<RankId> HoldersOnNode(const vps::HolderSet& holders, const Topology& topology, int32_t node) {
  std::vector<RankId> on_node;
  for (int64_t i = 0; i < holders.size(); ++i) {
    const RankId rank = holders.At(i);
    if (topology.NodeOf(rank) == node) on_node.push_back(rank);
  }
  return on_node;
}

std::vector<RankId> All(const vps::HolderSet& holders) {
  std::vector<RankId> ranks;
  for (int64_t i = 0; i < holders.size(); ++i) ranks.push_back(holders.At(i));
  return ranks;
}

}  // namespace

void SourceChoice::Audience::Add(int64_t needer, RankId rank) {
  by_residue.resize(static_cast<size_t>(near));
  by_residue[static_cast<size_t>(needer % near)].push_back(rank);
}

// Appends the needers i with (first + i) mod near == self.
void SourceChoice::Audience::AppendTargets(int64_t first, std::vector<RankId>* targets) const {
  if (by_residue.empty()) return;
  const int64_t residue = (self + near - first % near) % near;
  const std::vector<RankId>& chosen = by_residue[static_cast<size_t>(residue)];
  targets->insert(targets->end(), chosen.begin(), chosen.end());
}

SourceChoice::SourceChoice(const vps::HolderSet& holders, const vps::HolderSet& needers,
                           const Topology& topology, RankId rank)
    : num_needers_(needers.size()) {
  const std::optional<int64_t> needer = needers.IndexOf(rank);
  const std::optional<int64_t> holder = holders.IndexOf(rank);
  needs_ = needer.has_value();
  holds_ = holder.has_value();
  needer_ = needer.value_or(0);
  const int32_t node = topology.NodeOf(rank);
  if (receives()) {
    near_ = HoldersOnNode(holders, topology, node);
    if (near_.empty()) near_ = All(holders);
  }
  if (!holds_) return;

  const std::vector<RankId> mates = HoldersOnNode(holders, topology, node);
  own_node_.near = static_cast<int64_t>(mates.size());
  own_node_.self = std::find(mates.begin(), mates.end(), rank) - mates.begin();
  far_nodes_.near = holders.size();
  far_nodes_.self = *holder;
  std::map<int32_t, bool> node_has_holder;
  for (int64_t i = 0; i < holders.size(); ++i) node_has_holder[topology.NodeOf(holders.At(i))] = true;
  for (int64_t i = 0; i < needers.size(); ++i) {
    const RankId other = needers.At(i);
    if (holders.Contains(other)) continue;
    const int32_t other_node = topology.NodeOf(other);
    if (other_node == node) {
      own_node_.Add(i, other);
    } else if (!node_has_holder.contains(other_node)) {
      far_nodes_.Add(i, other);
    }
  }
}

RankId SourceChoice::SourceOf(int64_t ordinal) const {
  DT_CHECK(receives() && !near_.empty());
  const auto near = static_cast<int64_t>(near_.size());
  return near_[static_cast<size_t>(((ordinal % near) * (num_needers_ % near) + needer_) % near)];
}

std::vector<RankId> SourceChoice::TargetsOf(int64_t ordinal) const {
  std::vector<RankId> targets;
  if (!holds_) return targets;
  for (const Audience* audience : {&own_node_, &far_nodes_}) {
    if (audience->near == 0) continue;
    audience->AppendTargets((ordinal % audience->near) * (num_needers_ % audience->near), &targets);
  }
  std::sort(targets.begin(), targets.end());
  return targets;
}

}  // namespace dynatrain::planner
