// That no plan beats the bound: none of the planner's, and none of a rival's that may pass on
// whatever anybody has by then, over any ranks and nodes.
#include "dynatrain/planner/bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "dynatrain/planner/testing_routes.h"

namespace dynatrain::planner {
namespace {

using testing::MapOf;

// A rival plan: each class in parts, each part rank by rank to all who need it.
class Rival {
 public:
  Rival(const Topology& topology, RankId ranks, Random* random)
      : topology_(topology), ranks_(ranks), random_(random) {}

  void Serve(const TrafficClass& cls) {
    const std::vector<RankId> needers = cls.needers.List();
    const int64_t parts = random_->Between(1, 4);
    for (int64_t i = 0; i < parts; ++i) {
      std::vector<RankId> have = cls.holders.List();
      std::vector<RankId> wanting;
      for (const RankId rank : needers) {
        if (!cls.holders.Contains(rank)) wanting.push_back(rank);
      }
      const ByteCount bytes = cls.bytes * (i + 1) / parts - cls.bytes * i / parts;
      while (!wanting.empty()) {
        const RankId taker =  // or one that need not need it
            random_->OneIn(8) ? static_cast<RankId>(random_->Between(0, ranks_ - 1)) : Any(wanting);
        if (std::ranges::find(have, taker) != have.end()) continue;
        std::erase(wanting, taker);
        Carry(BestSource(have, taker), taker, bytes);
        have.push_back(taker);
      }
    }
  }

  double Seconds() const {
    const auto most = [](const auto& loads) {
      ByteCount bytes = 0;
      for (const auto& [id, b] : loads) bytes = std::max(bytes, b);
      return static_cast<double>(bytes);
    };
    return std::max(std::max(most(rank_in_), most(rank_out_)) / topology_.intra_node_bytes_per_s,
                    std::max(most(node_in_), most(node_out_)) / topology_.inter_node_bytes_per_s);
  }

 private:
  RankId Any(const std::vector<RankId>& ranks) {
    return ranks[static_cast<size_t>(random_->Between(0, std::ssize(ranks) - 1))];
  }

  // The one that has sent least so far, its own node's first; now and then any.
  RankId BestSource(const std::vector<RankId>& have, RankId taker) {
    if (random_->OneIn(8)) return Any(have);
    return *std::ranges::min_element(have, {}, [&](RankId rank) {
      const int32_t node = topology_.NodeOf(rank);
      const bool near = node == topology_.NodeOf(taker);
      return std::tuple(near ? 0 : 1, near ? ByteCount{0} : node_out_[node], rank_out_[rank]);
    });
  }

  void Carry(RankId from, RankId to, ByteCount bytes) {
    rank_out_[from] += bytes;
    rank_in_[to] += bytes;
    if (topology_.NodeOf(from) == topology_.NodeOf(to)) return;
    node_out_[topology_.NodeOf(from)] += bytes;
    node_in_[topology_.NodeOf(to)] += bytes;
  }

  const Topology& topology_;
  RankId ranks_;
  Random* random_;
  std::map<RankId, ByteCount> rank_in_, rank_out_;
  std::map<int32_t, ByteCount> node_in_, node_out_;
};

// Bytes that only the nodes of `set` hold and others need, element by element.
ByteCount CutOf(const std::set<int32_t>& set, const vps::ShardMap& from, const vps::ShardMap& to,
                const Topology& topology) {
  using Index = std::pair<vps::TensorId, std::vector<int64_t>>;
  std::map<Index, std::pair<bool, bool>> elements;  // held outside, needed outside
  const auto mark = [&](const vps::ShardMap& map, bool holds) {
    for (const RankId rank : map.Ranks()) {
      const bool outside = !set.contains(topology.NodeOf(rank));
      for (const vps::Shard& shard : map.ShardsOf(rank)) {
        for (int64_t i = 0; i < shard.box.elems(); ++i) {
          std::vector<int64_t> index(static_cast<size_t>(shard.box.dims()));
          int64_t flat = i;
          for (int axis = shard.box.dims() - 1; axis >= 0; --axis) {
            index[static_cast<size_t>(axis)] = shard.box.lo()[axis] + flat % shard.box.extent(axis);
            flat /= shard.box.extent(axis);
          }
          auto& [held, needed] = elements[{shard.tensor, index}];
          (holds ? held : needed) |= outside;
        }
      }
    }
  };
  mark(from, true);
  mark(to, false);
  ByteCount bytes = 0;
  for (const auto& [index, ends] : elements) {
    if (!ends.first && ends.second)
      bytes += vps::ElemBytes(from.catalog().tensor(index.first).dtype);
  }
  return bytes;
}

// Links of which now the ranks', now the nodes' are what counts.
Topology RandomLinks(Random* random) {
  Topology topology = testing::RandomTopology(random);
  topology.intra_node_bytes_per_s = 1 << random->Between(0, 6);
  topology.inter_node_bytes_per_s = 1 << random->Between(0, 6);
  return topology;
}

TEST(LowerBound, NoPlanIsFaster) {
  int by_outflow = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const testing::RandomMaps maps(&random);
    const Topology topology = RandomLinks(&random);
    const auto classes = ClassesBetween(*maps.from, *maps.to);
    ASSERT_TRUE(classes.ok()) << classes.status().ToString();
    const LowerBound bound = BoundOf(*classes, topology);
    const double seconds = bound.Seconds(topology);
    LowerBound in = bound;
    in.rank_out = {};
    in.node_out = {};
    by_outflow += in.Seconds(topology) < seconds ? 1 : 0;

    const std::vector<RankId> ranks = testing::UnionOfRanks(*maps.from, *maps.to);
    for (int rival = 0; rival < 20; ++rival) {
      Rival plan(topology, ranks.back() + 1, &random);
      for (const TrafficClass& cls : *classes) plan.Serve(cls);
      ASSERT_GE(plan.Seconds(), seconds * (1 - 1e-12));
    }
    for (const bool relays : {false, true}) {
      std::vector<Route> routes;
      for (const auto& [rank, route] :
           testing::AllRoutes(*maps.from, *maps.to, topology, {.relays = relays})) {
        routes.push_back(route);
      }
      const PlanTotals totals = TotalsOf(routes, *maps.catalog, topology, bound);
      ASSERT_GE(totals.fullest_link_seconds, seconds * (1 - 1e-12));
    }
  }
  EXPECT_GT(by_outflow, 30);
}

// Against all sets of nodes there are: never above the fullest, and no single node is missed.
TEST(LowerBound, WhatLeavesNodesIsACutOfElements) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const testing::RandomMaps maps(&random);
    const Topology topology{.ranks_per_node = 3};
    const auto bound = ComputeLowerBound(*maps.from, *maps.to, topology);
    ASSERT_TRUE(bound.ok()) << bound.status().ToString();
    std::set<int32_t> all;
    for (const RankId rank : maps.from->Ranks()) all.insert(topology.NodeOf(rank));
    const std::vector<int32_t> nodes(all.begin(), all.end());
    if (nodes.size() > 5) continue;
    double most = 0;
    double single = 0;
    for (uint32_t bits = 1; bits < 1U << nodes.size(); ++bits) {
      std::set<int32_t> set;
      for (size_t i = 0; i < nodes.size(); ++i) {
        if ((bits >> i & 1) != 0) set.insert(nodes[i]);
      }
      const auto each = static_cast<double>(CutOf(set, *maps.from, *maps.to, topology)) /
                        static_cast<double>(set.size());
      most = std::max(most, each);
      if (set.size() == 1) single = std::max(single, each);
    }
    EXPECT_LE(bound->node_out.each(), most);
    EXPECT_GE(bound->node_out.each(), single);
  }
}

// 64 bytes on rank 0 alone, for three others: they leave it once, and may be passed on then.
TEST(LowerBound, ASoleHolderSendsOnce) {
  const auto catalog = testing::OneMatrix({4, 4}, vps::Split::Balanced(0));
  const auto from = MapOf(catalog, "dp=1");
  const auto to = MapOf(catalog, "dp=4");
  const Topology topology{.ranks_per_node = 1};
  const auto bound = ComputeLowerBound(*from, *to, topology);
  ASSERT_TRUE(bound.ok());
  EXPECT_EQ(bound->rank_out.bytes, 64);
  EXPECT_EQ(bound->node_out.bytes, 64);
  EXPECT_EQ(bound->node_out.count, 1);
}

// Both halves are on ranks 0 and 1 of two nodes, and all other nodes need them: 64 bytes leave the
// two, so one of them sends 32. Rows alone: rank 0 has none that rank 1 has not.
TEST(LowerBound, HoldersOfTheSameShareWhatLeaves) {
  const auto catalog = testing::OneMatrix({4, 4}, vps::Split::Balanced(0));
  const auto bound = ComputeLowerBound(*MapOf(catalog, "dp=2"), *MapOf(catalog, "dp=6"),
                                       Topology{.ranks_per_node = 1});
  ASSERT_TRUE(bound.ok());
  EXPECT_EQ(bound->rank_out.bytes, 0);
  EXPECT_EQ(bound->node_out.bytes, 64);
  EXPECT_EQ(bound->node_out.count, 2);
  EXPECT_EQ(bound->max_node_in(), 64);
}

// What stays inside a node does not count for its NICs, but for the rank that has it.
TEST(LowerBound, InsideANodeOnlyRanksSend) {
  const auto catalog = testing::OneMatrix({4, 4}, vps::Split::Balanced(0));
  const auto bound = ComputeLowerBound(*MapOf(catalog, "dp=1"), *MapOf(catalog, "tp=4,dp=1"),
                                       Topology{.ranks_per_node = 4, .intra_node_bytes_per_s = 1});
  ASSERT_TRUE(bound.ok());
  EXPECT_EQ(bound->node_out.bytes, 0);
  EXPECT_EQ(bound->rank_out.bytes, 48);
  EXPECT_EQ(bound->max_rank_in(), 16);
  EXPECT_EQ(bound->Seconds(Topology{.ranks_per_node = 4, .intra_node_bytes_per_s = 1}), 48);
}

}  // namespace
}  // namespace dynatrain::planner
