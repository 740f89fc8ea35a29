#include "dynatrain/planner/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include "dynatrain/planner/bound.h"
#include "dynatrain/planner/testing_routes.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::planner {
namespace {

using planner::testing::MapOf;
using ::testing::ElementsAre;
using vps::testing::Element;

using Elements = std::set<Element>;

Elements HeldBy(const vps::ShardMap& map, RankId rank) {
  Elements held;
  for (const vps::testing::OracleBuffer& buffer : vps::testing::PaintedBuffers(map, rank)) {
    for (const Element& e : buffer.elements) {
      if (e.tensor >= 0) held.insert(e);
    }
  }
  return held;
}

ByteCount BytesMissing(const vps::StateCatalog& catalog, const Elements& need,
                       const Elements& held) {
  ByteCount bytes = 0;
  for (const Element& e : need) {
    if (!held.contains(e)) bytes += vps::ElemBytes(catalog.tensor(e.tensor).dtype);
  }
  return bytes;
}

// Tries every allowed map, element by element.
class BruteForceRoles {
 public:
  BruteForceRoles(const vps::ShardMap& from, const vps::LayoutShardMap& to,
                  const Topology& topology, const std::vector<RankId>& candidates)
      : catalog_(to.catalog()), topology_(topology), identity_(to.Ranks()) {
    for (const RankId rank : candidates) by_node_[topology.NodeOf(rank)].push_back(rank);
    for (const RankId rank : candidates) held_[rank] = HeldBy(from, rank);
    for (const RankId rank : from.Ranks()) {
      const Elements held = HeldBy(from, rank);
      held_by_node_[topology.NodeOf(rank)].insert(held.begin(), held.end());
    }
    for (const RankId rank : identity_) {
      need_.push_back(HeldBy(to, rank));
      const int32_t node = topology.NodeOf(rank);
      const auto known = std::find(block_nodes_.begin(), block_nodes_.end(), node);
      const auto block = static_cast<size_t>(known - block_nodes_.begin());
      if (known == block_nodes_.end()) {
        block_nodes_.push_back(node);
        blocks_.emplace_back();
      }
      blocks_[block].push_back(need_.size() - 1);
    }
  }

  RoleAssignment Best() {
    Place(0, std::vector<RankId>(identity_.size(), -1), {});
    return best_;
  }

 private:
  void Place(size_t block, std::vector<RankId> ranks, std::set<int32_t> used) {
    if (block == blocks_.size()) return Consider(ranks);
    for (const auto& [node, candidates] : by_node_) {
      if (used.contains(node) || candidates.size() < blocks_[block].size()) continue;
      std::set<int32_t> next = used;
      next.insert(node);
      std::vector<RankId> order = candidates;
      do {
        for (size_t i = 0; i < blocks_[block].size(); ++i) ranks[blocks_[block][i]] = order[i];
        Place(block + 1, ranks, next);
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }

  void Consider(const std::vector<RankId>& ranks) {
    RoleCosts costs;
    for (size_t p = 0; p < ranks.size(); ++p) {
      const ByteCount in = RankIn(p, ranks[p]);
      costs.max_rank_in = std::max(costs.max_rank_in, in);
      costs.total += in;
      costs.changed += ranks[p] != identity_[p] ? 1 : 0;
    }
    std::vector<RankId> listed;  // block by block, as ties are compared
    for (size_t b = 0; b < blocks_.size(); ++b) {
      costs.max_node_in =
          std::max(costs.max_node_in, NodeIn(b, topology_.NodeOf(ranks[blocks_[b][0]])));
      for (const size_t p : blocks_[b]) listed.push_back(ranks[p]);
    }
    if (ranks == identity_) best_.identity_costs = costs;
    if (!best_.ranks.empty() && std::tie(best_.costs, listed_) <= std::tie(costs, listed)) return;
    best_.costs = costs;
    best_.ranks = ranks;
    listed_ = listed;
  }

  ByteCount RankIn(size_t position, RankId rank) {
    const auto [it, fresh] = rank_in_.try_emplace({position, rank}, 0);
    if (fresh) it->second = BytesMissing(catalog_, need_[position], held_.at(rank));
    return it->second;
  }

  ByteCount NodeIn(size_t block, int32_t node) {
    const auto [it, fresh] = node_in_.try_emplace({block, node}, 0);
    if (!fresh) return it->second;
    Elements need;
    for (const size_t p : blocks_[block]) need.insert(need_[p].begin(), need_[p].end());
    return it->second = BytesMissing(catalog_, need, held_by_node_[node]);
  }

  const vps::StateCatalog& catalog_;
  const Topology& topology_;
  std::vector<RankId> identity_;
  std::map<int32_t, std::vector<RankId>> by_node_;
  std::map<RankId, Elements> held_;
  std::map<int32_t, Elements> held_by_node_;
  std::vector<Elements> need_;
  std::vector<int32_t> block_nodes_;
  std::vector<std::vector<size_t>> blocks_;
  std::map<std::pair<size_t, RankId>, ByteCount> rank_in_;
  std::map<std::pair<size_t, int32_t>, ByteCount> node_in_;
  RoleAssignment best_;
  std::vector<RankId> listed_;
};

vps::Layout DrawSmallLayout(Random* random) {
  constexpr std::array kSpecs = {"cp=2,dp=2,zero=3",
                                 "dp=4,ep=2,zero=1",
                                 "tp=2,dp=2,ep=2,etp=2",
                                 "pp=2,vpp=2,dp=2,zero=1",
                                 "dp=3,zero=3,zero_order=forward-dim0",
                                 "dp=4,ep=4,zero=2,zero_order=megatron",
                                 "tp=2,dp=2",
                                 "dp=4,zero=1",
                                 "pp=2,dp=2,zero=1",
                                 "tp=4,dp=1",
                                 "pp=3,dp=1",
                                 "tp=2,dp=3,zero=1",
                                 "dp=2",
                                 "dp=6,zero=1",
                                 "tp=3,dp=1",
                                 "dp=4",
                                 "tp=2,pp=3,dp=1",
                                 "dp=5,zero=1",
                                 "tp=2,pp=2,dp=1",
                                 "dp=1",
                                 "tp=3,dp=2,zero=1"};
  auto layout = vps::ParseLayout(
      kSpecs[static_cast<size_t>(random->Between(0, static_cast<int64_t>(kSpecs.size()) - 1))]);
  EXPECT_TRUE(layout.ok());
  if (!random->OneIn(3)) return *layout;
  std::vector<RankId> ranks(6);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (size_t i = ranks.size(); i > 1; --i) {
    std::swap(ranks[i - 1],
              ranks[static_cast<size_t>(random->Between(0, static_cast<int64_t>(i) - 1))]);
  }
  ranks.resize(static_cast<size_t>(layout->world_size()));
  layout->ranks = ranks;
  return *layout;
}

// One that the catalog fits.
vps::Layout SmallLayout(Random* random, const std::shared_ptr<const vps::StateCatalog>& catalog) {
  while (true) {
    const vps::Layout layout = DrawSmallLayout(random);
    if (vps::LayoutShardMap::Make(catalog, layout).ok()) return layout;
  }
}

std::shared_ptr<const vps::StateCatalog> SmallCatalog(Random* random) {
  return random->OneIn(2) ? vps::testing::RandomCatalog(random, 0)
                          : vps::testing::RandomWideCatalog(random);
}

TEST(AssignRoles, EqualsBruteForceOnSmallWorlds) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto catalog = SmallCatalog(&random);
    const vps::Layout old_layout = SmallLayout(&random, catalog);
    const vps::Layout new_layout = SmallLayout(&random, catalog);
    const auto from = MapOf(catalog, old_layout);
    const auto to = MapOf(catalog, new_layout);
    const Topology topology{.ranks_per_node = static_cast<int32_t>(random.Between(1, 3))};
    const std::vector<RankId> candidates = CandidateRanks(old_layout, new_layout);
    const auto found = AssignRoles(*from, *to, topology, candidates);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    const RoleAssignment best = BruteForceRoles(*from, *to, topology, candidates).Best();
    EXPECT_EQ(found->ranks, best.ranks) << old_layout.ToString() << " to " << new_layout.ToString();
    EXPECT_EQ(found->costs, best.costs);
    EXPECT_EQ(found->identity_costs, best.identity_costs);
    if (HasFailure()) return;
  }
}

TEST(AssignRoles, CostsAreWhatTheRoutesThenMove) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto catalog = SmallCatalog(&random);
    const vps::Layout old_layout = SmallLayout(&random, catalog);
    vps::Layout layout = SmallLayout(&random, catalog);
    const auto from = MapOf(catalog, old_layout);
    const Topology topology{.ranks_per_node = static_cast<int32_t>(random.Between(1, 3))};
    const auto roles =
        AssignRoles(*from, *MapOf(catalog, layout), topology, CandidateRanks(old_layout, layout));
    ASSERT_TRUE(roles.ok());
    layout.ranks = roles->ranks;
    const auto to = MapOf(catalog, layout);
    const auto bound = ComputeLowerBound(*from, *to, topology);
    ASSERT_TRUE(bound.ok());
    EXPECT_EQ(bound->bytes, roles->costs.total);
    EXPECT_EQ(bound->max_rank_in(), roles->costs.max_rank_in);
    EXPECT_EQ(bound->max_node_in(), roles->costs.max_node_in);
    EXPECT_LE(roles->costs, roles->identity_costs);
  }
}

// Four stages lie on ranks 3, 2, 1, 0; as four stages in the plain order nothing needs to move.
TEST(AssignRoles, KeepsEverythingWhereItIs) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  for (int32_t layer = 0; layer < 4; ++layer) {
    ASSERT_TRUE(catalog
                    ->Add({.name = fmt::format("p{}", layer),
                           .shape = {8},
                           .homes = {vps::Home::Layer(layer)},
                           .kinds = vps::Fp32AdamKinds()})
                    .ok());
  }
  const auto from = MapOf(catalog, "pp=4,dp=1,ranks=3+2+1+0");
  const auto to = MapOf(catalog, "pp=4,dp=1");
  const auto roles = AssignRoles(*from, *to, Topology{}, {0, 1, 2, 3});
  ASSERT_TRUE(roles.ok());
  EXPECT_THAT(roles->ranks, ElementsAre(3, 2, 1, 0));
  EXPECT_EQ(roles->costs.total, 0);
  EXPECT_EQ(roles->identity_costs.total, 4 * 8 * 12);
}

// Two replicas become one: the ranks that stay are those that hold it, wherever they are.
TEST(AssignRoles, ChoosesTheRanksThatStay) {
  const auto catalog = planner::testing::OneMatrix({4, 8}, vps::Split::Balanced(0));
  const vps::Layout old_layout = *vps::ParseLayout("tp=2,dp=1,ranks=4-5");
  const vps::Layout new_layout = *vps::ParseLayout("tp=2,dp=1");
  const Topology topology{.ranks_per_node = 2};
  const std::vector<RankId> candidates = CandidateRanks(old_layout, new_layout);
  EXPECT_THAT(candidates, ElementsAre(0, 1, 4, 5));
  const auto roles =
      AssignRoles(*MapOf(catalog, old_layout), *MapOf(catalog, new_layout), topology, candidates);
  ASSERT_TRUE(roles.ok());
  EXPECT_THAT(roles->ranks, ElementsAre(4, 5));
  EXPECT_EQ(roles->costs.total, 0);
}

TEST(AssignRoles, RefusesRanksThatAreNoCandidates) {
  const auto catalog = planner::testing::OneMatrix({4, 8}, vps::Split::Balanced(0));
  const auto map = MapOf(catalog, "tp=2,dp=1");
  EXPECT_FALSE(AssignRoles(*map, *map, Topology{}, {0}).ok());
  EXPECT_TRUE(ParseRolePolicy("free").ok());
  EXPECT_FALSE(ParseRolePolicy("greedy").ok());
}

}  // namespace
}  // namespace dynatrain::planner
