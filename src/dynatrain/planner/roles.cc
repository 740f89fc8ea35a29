#include "dynatrain/planner/roles.h"

#include <algorithm>
#include <map>
#include <set>

#include "dynatrain/planner/assignment.h"
#include "dynatrain/planner/traffic_classes.h"

namespace dynatrain::planner {
namespace {

using vps::HolderSet;

struct Block {
  std::vector<size_t> positions;  // ascending
  ByteCount need = 0;             // bytes that any of its positions needs, once
};

struct Node {
  int32_t node;
  std::vector<size_t> candidates;  // ascending
};

// What each position and each block would have to take in, wherever it goes.
class RoleProblem {
 public:
  RoleProblem(std::vector<RankId> identity, const std::vector<RankId>& candidates,
              const Topology& topology)
      : identity_(std::move(identity)), candidates_(candidates), topology_(topology) {
    for (size_t c = 0; c < candidates.size(); ++c) {
      const int32_t node = topology.NodeOf(candidates[c]);
      const auto [it, fresh] = node_index_.try_emplace(node, nodes_.size());
      if (fresh) nodes_.push_back({node, {}});
      nodes_[it->second].candidates.push_back(c);
      candidate_of_[candidates[c]] = c;
    }
    std::map<int32_t, size_t> block_at;
    for (size_t p = 0; p < identity_.size(); ++p) {
      const auto [it, fresh] = block_at.try_emplace(topology.NodeOf(identity_[p]), blocks_.size());
      if (fresh) blocks_.emplace_back();
      blocks_[it->second].positions.push_back(p);
      block_of_.push_back(it->second);
      position_of_[identity_[p]] = p;
    }
    need_.assign(identity_.size(), 0);
    held_.assign(identity_.size() * candidates.size(), 0);
    held_by_node_.assign(blocks_.size() * nodes_.size(), 0);
  }

  void Add(const TrafficClass& cls) {
    std::vector<size_t> held;
    std::set<size_t> holder_nodes;
    for (int64_t i = 0; i < cls.holders.size(); ++i) {
      const RankId rank = cls.holders.At(i);
      if (const auto it = candidate_of_.find(rank); it != candidate_of_.end()) {
        held.push_back(it->second);
      }
      const auto node = node_index_.find(topology_.NodeOf(rank));
      if (node != node_index_.end()) holder_nodes.insert(node->second);
    }
    std::set<size_t> blocks;
    for (int64_t i = 0; i < cls.needers.size(); ++i) {
      const size_t p = position_of_.at(cls.needers.At(i));
      need_[p] += cls.bytes;
      for (const size_t c : held) held_[p * candidates_.size() + c] += cls.bytes;
      blocks.insert(block_of_[p]);
    }
    for (const size_t b : blocks) {
      blocks_[b].need += cls.bytes;
      for (const size_t v : holder_nodes) held_by_node_[b * nodes_.size() + v] += cls.bytes;
    }
  }

  // In the order of the header: node by node, rank by rank, total and changes, ties.
  Result<std::vector<RankId>> Best() const {
    const auto num_blocks = static_cast<int>(blocks_.size());
    const auto num_nodes = static_cast<int>(nodes_.size());
    CostTable<int64_t> node_in(num_blocks, num_nodes);
    ForEachPair([&](int b, int v) { node_in.at(b, v) = NodeIn(Index(b), Index(v)); });
    const std::optional<int64_t> fullest_node = BottleneckCost(node_in);
    if (!fullest_node) {
      return InvalidArgument(
          "roles: the {} blocks of ranks that share a node do not fit on the {} nodes of the ranks "
          "to choose from",
          num_blocks, num_nodes);
    }
    CostTable<int64_t> rank_in(num_blocks, num_nodes);
    ForEachPair([&](int b, int v) {
      if (*node_in.at(b, v) <= *fullest_node) rank_in.at(b, v) = LeastRankIn(Index(b), Index(v));
    });
    const std::optional<int64_t> fullest_rank = BottleneckCost(rank_in);
    DT_CHECK(fullest_rank.has_value());
    CostTable<PairCost> total(num_blocks, num_nodes);
    std::vector<Assigned> inner(blocks_.size() * nodes_.size());
    std::vector<int64_t> order(inner.size(), 0);
    ForEachPair([&](int b, int v) {
      if (!rank_in.at(b, v) || *rank_in.at(b, v) > *fullest_rank) return;
      const size_t pair = Index(b) * nodes_.size() + Index(v);
      inner[pair] = CheapestInside(Index(b), Index(v), *fullest_rank);
      total.at(b, v) = inner[pair].total;
      order[pair] = candidates_[nodes_[Index(v)].candidates[Index(inner[pair].column_of[0])]];
    });
    const std::optional<Assigned> outer = CheapestAssignment(total, order);
    DT_CHECK(outer.has_value());
    std::vector<RankId> ranks(identity_.size());
    for (size_t b = 0; b < blocks_.size(); ++b) {
      const size_t v = Index(outer->column_of[b]);
      const std::vector<int>& columns = inner[b * nodes_.size() + v].column_of;
      for (size_t i = 0; i < columns.size(); ++i) {
        ranks[blocks_[b].positions[i]] = candidates_[nodes_[v].candidates[Index(columns[i])]];
      }
    }
    return ranks;
  }

  RoleCosts CostsOf(const std::vector<RankId>& ranks) const {
    RoleCosts costs;
    for (size_t p = 0; p < ranks.size(); ++p) {
      const size_t c = candidate_of_.at(ranks[p]);
      const ByteCount in = need_[p] - held_[p * candidates_.size() + c];
      costs.max_rank_in = std::max(costs.max_rank_in, in);
      costs.total += in;
      costs.changed += ranks[p] != identity_[p] ? 1 : 0;
    }
    for (size_t b = 0; b < blocks_.size(); ++b) {
      const int32_t node = topology_.NodeOf(ranks[blocks_[b].positions[0]]);
      costs.max_node_in = std::max(costs.max_node_in, NodeIn(b, node_index_.at(node)));
    }
    return costs;
  }

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }

  // Calls visit(block, node) where the node has room.
  template <class Visit>
  void ForEachPair(const Visit& visit) const {
    for (size_t b = 0; b < blocks_.size(); ++b) {
      for (size_t v = 0; v < nodes_.size(); ++v) {
        if (blocks_[b].positions.size() > nodes_[v].candidates.size()) continue;
        visit(static_cast<int>(b), static_cast<int>(v));
      }
    }
  }

  ByteCount NodeIn(size_t block, size_t node) const {
    return blocks_[block].need - held_by_node_[block * nodes_.size() + node];
  }

  ByteCount RankIn(size_t block, size_t row, size_t node, size_t column) const {
    const size_t p = blocks_[block].positions[row];
    return need_[p] - held_[p * candidates_.size() + nodes_[node].candidates[column]];
  }

  std::optional<int64_t> LeastRankIn(size_t b, size_t v) const {
    CostTable<int64_t> table(static_cast<int>(blocks_[b].positions.size()),
                             static_cast<int>(nodes_[v].candidates.size()));
    for (int r = 0; r < table.rows; ++r) {
      for (int c = 0; c < table.columns; ++c) table.at(r, c) = RankIn(b, Index(r), v, Index(c));
    }
    return BottleneckCost(table);
  }

  Assigned CheapestInside(size_t b, size_t v, ByteCount most) const {
    CostTable<PairCost> table(static_cast<int>(blocks_[b].positions.size()),
                              static_cast<int>(nodes_[v].candidates.size()));
    std::vector<int64_t> order;
    for (int r = 0; r < table.rows; ++r) {
      const RankId identity = identity_[blocks_[b].positions[Index(r)]];
      for (int c = 0; c < table.columns; ++c) {
        const RankId rank = candidates_[nodes_[v].candidates[Index(c)]];
        const ByteCount in = RankIn(b, Index(r), v, Index(c));
        if (in <= most) table.at(r, c) = PairCost{in, rank != identity ? 1 : 0};
        order.push_back(rank);
      }
    }
    const std::optional<Assigned> assigned = CheapestAssignment(table, order);
    DT_CHECK(assigned.has_value());
    return *assigned;
  }

  std::vector<RankId> identity_;
  const std::vector<RankId>& candidates_;
  const Topology& topology_;
  std::vector<Node> nodes_;
  std::map<int32_t, size_t> node_index_;
  std::map<RankId, size_t> candidate_of_;
  std::vector<Block> blocks_;
  std::vector<size_t> block_of_;  // by position
  std::map<RankId, size_t> position_of_;
  std::vector<ByteCount> need_;          // by position
  std::vector<ByteCount> held_;          // by position, then candidate
  std::vector<ByteCount> held_by_node_;  // by block, then node
};

}  // namespace

Result<RolePolicy> ParseRolePolicy(std::string_view name) {
  if (name == "identity") return RolePolicy::kIdentity;
  if (name == "free") return RolePolicy::kFree;
  return InvalidArgument("roles {}: identity or free", name);
}

std::vector<RankId> CandidateRanks(const vps::Layout& from, const vps::Layout& to) {
  std::vector<RankId> ranks = to.Ranks();
  if (to.ranks.empty()) {
    for (const RankId rank : from.Ranks()) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Result<RoleAssignment> AssignRoles(const vps::ShardMap& from, const vps::LayoutShardMap& to,
                                   const Topology& topology,
                                   const std::vector<RankId>& candidates) {
  const std::vector<RankId> identity = to.Ranks();
  for (const RankId rank : identity) {
    if (std::binary_search(candidates.begin(), candidates.end(), rank)) continue;
    return InvalidArgument("roles: rank {} of the new layout is not among the {} to choose from",
                           rank, candidates.size());
  }
  DT_ASSIGN_OR_RETURN(const std::vector<TrafficClass> classes, ClassesBetween(from, to));
  RoleProblem problem(identity, candidates, topology);
  for (const TrafficClass& cls : classes) problem.Add(cls);
  RoleAssignment assignment;
  DT_ASSIGN_OR_RETURN(assignment.ranks, problem.Best());
  assignment.costs = problem.CostsOf(assignment.ranks);
  assignment.identity_costs = problem.CostsOf(identity);
  return assignment;
}

}  // namespace dynatrain::planner
