#include "dynatrain/planner/testing_routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>

#include "dynatrain/planner/bound.h"
#include "dynatrain/planner/brute_force.h"
#include "dynatrain/planner/source_table.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::planner::testing {
namespace {

using vps::Box;
using vps::Coords;
using vps::HolderSet;
using vps::Shard;
using vps::ShardMap;
using vps::StateCatalog;
using vps::testing::DistinctValue;
using vps::testing::Element;
using vps::testing::MakeState;
using vps::testing::State;

// The shard of a rank that holds all of a piece; there must be exactly one.
const Shard* ShardWith(const std::vector<Shard>& shards, const Piece& piece) {
  const Shard* found = nullptr;
  auto it =
      std::lower_bound(shards.begin(), shards.end(), piece.tensor,
                       [](const Shard& s, vps::TensorId tensor) { return s.tensor < tensor; });
  for (; it != shards.end() && it->tensor == piece.tensor; ++it) {
    if (!it->box.Contains(piece.box)) continue;
    EXPECT_EQ(found, nullptr);
    found = &*it;
  }
  return found;
}

int64_t PlaceOf(const Shard& shard, const Coords& index) {
  int64_t place = shard.offset;
  for (int axis = 0; axis < index.dims(); ++axis) {
    place += (index[axis] - shard.box.lo()[axis]) * shard.strides[axis];
  }
  return place;
}

Coords IndexAt(const Box& box, int64_t flat) {
  Coords index = box.lo();
  for (int axis = box.dims() - 1; axis >= 0; --axis) {
    index[axis] += flat % box.extent(axis);
    flat /= box.extent(axis);
  }
  return index;
}

// One side of a switch: the shards and bytes of all ranks.
class Side {
 public:
  Side(const ShardMap& map, State state) : state_(std::move(state)) {
    for (const auto& [rank, buffers] : state_) shards_[rank] = map.ShardsOf(rank);
  }
  const Shard* Find(RankId rank, const Piece& piece) const {
    const auto it = shards_.find(rank);
    return it == shards_.end() ? nullptr : ShardWith(it->second, piece);
  }
  std::byte* At(RankId rank, const Shard& shard, int64_t place, ByteCount bytes) {
    return &state_.at(rank)[static_cast<size_t>(shard.buffer)][static_cast<size_t>(place * bytes)];
  }
  const State& state() const { return state_; }

 private:
  State state_;
  std::map<RankId, std::vector<Shard>> shards_;
};

class Mover {
 public:
  Mover(const ShardMap& from, const State& state, const ShardMap& to, const State* expected)
      : catalog_(to.catalog()),
        old_(from, state),
        new_(to, MakeState(to, [](const Element&) { return ~uint64_t{0}; })) {
    if (expected != nullptr) expected_.emplace(to, *expected);
  }

  enum class Origin { kOld, kNew, kExpected };

  void Move(const Piece& piece, Origin origin, RankId source, RankId rank) {
    Side& side = origin == Origin::kOld ? old_ : origin == Origin::kNew ? new_ : *expected_;
    const Shard* in = side.Find(source, piece);
    const Shard* out = new_.Find(rank, piece);
    ASSERT_NE(in, nullptr) << "rank " << source << " does not hold " << piece.box.ToString();
    ASSERT_NE(out, nullptr) << "rank " << rank << " does not need " << piece.box.ToString();
    const ByteCount bytes = vps::ElemBytes(catalog_.tensor(piece.tensor).dtype);
    for (int64_t i = 0; i < piece.box.elems(); ++i) {
      const Coords index = IndexAt(piece.box, i);
      const int64_t read = PlaceOf(*in, index);
      const int64_t write = PlaceOf(*out, index);
      if (origin == Origin::kNew) {
        EXPECT_TRUE(written_.contains({source, in->buffer, read}))
            << "rank " << source << " relays " << piece.box.ToString() << " before it has it";
      }
      std::memcpy(new_.At(rank, *out, write, bytes), side.At(source, *in, read, bytes),
                  static_cast<size_t>(bytes));
      EXPECT_TRUE(written_.insert({rank, out->buffer, write}).second)
          << "written twice: rank " << rank << " " << piece.box.ToString();
    }
  }
  const State& state() const { return new_.state(); }

 private:
  const StateCatalog& catalog_;
  Side old_;
  Side new_;
  std::optional<Side> expected_;
  std::set<std::tuple<RankId, vps::BufferIndex, int64_t>> written_;
};

PlanOptions RandomOptions(Random* random) {
  PlanOptions options;
  options.relays = random->OneIn(2);
  options.derive = random->OneIn(4);
  if (random->OneIn(2)) options.stripe_bytes = random->Between(1, 64);
  return options;
}

void ExpectBounds(const ShardMap& from, const ShardMap& to, const Topology& topology,
                  const PlanOptions& options, const Routes& routes) {
  std::vector<Route> list;
  for (const auto& [rank, route] : routes) list.push_back(route);
  const auto bound = ComputeLowerBound(from, to, topology);
  ASSERT_TRUE(bound.ok()) << bound.status().ToString();
  const PlanTotals totals = TotalsOf(list, to.catalog(), topology, *bound);
  EXPECT_EQ(totals.wire_bytes, totals.moved_bytes);
  if (options.derive) return;
  EXPECT_EQ(totals.moved_bytes, bound->bytes);
  EXPECT_EQ(totals.rank_in.bytes, bound->max_rank_in());
  if (options.relays) {
    EXPECT_EQ(totals.cross_node_bytes, bound->cross_node_bytes);
    EXPECT_EQ(totals.node_in.bytes, bound->max_node_in());
  }
}

}  // namespace

std::shared_ptr<const StateCatalog> OneMatrix(Coords shape, vps::Split split) {
  auto catalog = std::make_shared<StateCatalog>();
  vps::Parameter p;
  p.name = "w";
  p.shape = shape;
  p.split = std::move(split);
  p.homes = {vps::Home::Layer(0)};
  p.kinds = {{vps::Kind::kParam, vps::DType::kF32}};
  EXPECT_TRUE(catalog->Add(p).ok());
  return catalog;
}

Routes AllRoutes(const ShardMap& from, const ShardMap& to, const Topology& topology,
                 const PlanOptions& options) {
  Routes routes;
  for (const RankId rank : UnionOfRanks(from, to)) {
    auto route = PlanRoute(from, to, topology, rank, options);
    EXPECT_TRUE(route.ok()) << route.status().ToString();
    routes[rank] = *std::move(route);
  }
  return routes;
}

ByteCount Received(const Routes& routes) {
  ByteCount total = 0;
  for (const auto& [rank, route] : routes) total += route.received_bytes;
  return total;
}

State Apply(const ShardMap& from, const State& state, const ShardMap& to, const Routes& routes,
            const State* expected) {
  using Origin = Mover::Origin;
  Mover mover(from, state, to, expected);
  for (const auto& [rank, route] : routes) {
    for (const Piece& piece : route.keeps) mover.Move(piece, Origin::kOld, rank, rank);
    for (const Piece& piece : route.derives) mover.Move(piece, Origin::kExpected, rank, rank);
    for (const Transfer& t : route.receives) mover.Move(t.piece, Origin::kOld, t.peer, rank);
  }
  for (const auto& [rank, route] : routes) {
    for (const Transfer& t : route.relay_receives) mover.Move(t.piece, Origin::kNew, t.peer, rank);
  }
  return mover.state();
}

void ExpectSendsMatchReceives(const Routes& routes) {
  using Hop = std::tuple<bool, RankId, RankId, Piece>;  // relayed, sender, receiver
  std::multiset<Hop> sent;
  std::multiset<Hop> received;
  for (const auto& [rank, route] : routes) {
    for (const Transfer& t : route.sends) sent.insert({false, rank, t.peer, t.piece});
    for (const Transfer& t : route.receives) received.insert({false, t.peer, rank, t.piece});
    for (const Transfer& t : route.relay_sends) sent.insert({true, rank, t.peer, t.piece});
    for (const Transfer& t : route.relay_receives) received.insert({true, t.peer, rank, t.piece});
  }
  EXPECT_EQ(sent, received);
}

void ExpectOrdered(const Route& route) {
  EXPECT_TRUE(std::is_sorted(route.keeps.begin(), route.keeps.end()));
  EXPECT_TRUE(std::is_sorted(route.derives.begin(), route.derives.end()));
  for (const auto* list :
       {&route.sends, &route.receives, &route.relay_sends, &route.relay_receives}) {
    EXPECT_TRUE(
        std::is_sorted(list->begin(), list->end(), [](const Transfer& a, const Transfer& b) {
          return std::tie(a.piece, a.peer) < std::tie(b.piece, b.peer);
        }));
    for (const Transfer& t : *list) EXPECT_FALSE(t.piece.box.empty());
  }
}

void ExpectNearSources(const ShardMap& from, const Topology& topology, const Route& route) {
  for (const Transfer& t : route.receives) {
    bool local = false;
    from.VisitHolders(t.piece.tensor, t.piece.box, [&](const Box&, const HolderSet& holders) {
      for (int64_t i = 0; i < holders.size(); ++i) {
        local |= topology.NodeOf(holders.At(i)) == topology.NodeOf(route.rank);
      }
    });
    EXPECT_EQ(local, topology.NodeOf(t.peer) == topology.NodeOf(route.rank));
  }
  for (const auto* list : {&route.relay_sends, &route.relay_receives}) {
    for (const Transfer& t : *list) {
      EXPECT_EQ(topology.NodeOf(t.peer), topology.NodeOf(route.rank));
      EXPECT_NE(t.peer, route.rank);
    }
  }
}

RandomMaps::RandomMaps(Random* random) {
  const bool wide = !random->OneIn(4);
  const auto tp = static_cast<int32_t>(random->Between(0, 4));
  catalog =
      wide ? vps::testing::RandomWideCatalog(random) : vps::testing::RandomCatalog(random, tp);
  for (auto* side : {&from, &to}) {
    const auto map = MapOf(catalog, wide ? vps::testing::RandomWideLayout(random, *catalog)
                                         : vps::testing::RandomLayout(random, *catalog, tp));
    *side = map;
    if (!random->OneIn(4)) continue;
    auto copy = vps::ExplicitShardMap::Copy(catalog, *map, {});
    EXPECT_TRUE(copy.ok()) << copy.status().ToString();
    *side = *copy;
  }
}

Topology RandomTopology(Random* random) {
  Topology topology;
  if (random->OneIn(3)) return topology;
  topology.ranks_per_node = static_cast<int32_t>(random->Between(1, 8));
  if (!random->OneIn(3)) return topology;
  topology.nodes = static_cast<int32_t>(random->Between(1, 6));
  for (int i = 0; i < 80; ++i) {
    const bool first = i < topology.nodes;
    topology.node_of.push_back(
        first ? i : static_cast<int32_t>(random->Between(0, topology.nodes - 1)));
  }
  return topology;
}

void CheckTriple(uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Random random(seed);
  const auto [catalog, from, to] = RandomMaps(&random);
  const Topology topology = RandomTopology(&random);
  PlanOptions options = RandomOptions(&random);
  if (random.OneIn(4)) {
    auto table = SourceTable::Solve(*from, *to, topology, options);
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    options.table = *table;
  }
  const Routes routes = AllRoutes(*from, *to, topology, options);
  ExpectSendsMatchReceives(routes);
  ByteCount derived = 0;
  for (const auto& [rank, route] : routes) {
    ExpectOrdered(route);
    ExpectNearSources(*from, topology, route);
    EXPECT_TRUE(options.relays || route.relay_sends.empty());
    derived += route.derived_bytes;
  }
  EXPECT_TRUE(options.derive || derived == 0);
  EXPECT_EQ(Received(routes) + derived, BruteForceMovedBytes(*from, *to));
  ExpectBounds(*from, *to, topology, options, routes);
  const State before = MakeState(*from, DistinctValue);
  const State wanted = MakeState(*to, DistinctValue);
  const State after = Apply(*from, before, *to, routes, &wanted);
  EXPECT_EQ(after, wanted);
  options.derive = false;
  EXPECT_EQ(Apply(*to, after, *from, AllRoutes(*to, *from, topology, options)), before);
}

void CheckTriples(uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    CheckTriple(seed);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace dynatrain::planner::testing
