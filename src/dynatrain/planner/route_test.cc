#include "dynatrain/planner/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/planner/brute_force.h"
#include "dynatrain/planner/testing_routes.h"
#include "dynatrain/vps/element_oracle.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::planner {
namespace {

using planner::testing::AllRoutes;
using planner::testing::Apply;
using planner::testing::CheckTriples;
using planner::testing::ExpectSendsMatchReceives;
using planner::testing::MapOf;
using planner::testing::OneMatrix;
using planner::testing::RandomMaps;
using planner::testing::Received;
using planner::testing::UnionOfRanks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using vps::Box;
using vps::ExplicitShardMap;
using vps::HolderSet;
using vps::LayoutShardMap;
using vps::Parameter;
using vps::Shard;
using vps::ShardMap;
using vps::Split;
using vps::StateCatalog;
using vps::TensorId;
using vps::testing::DistinctValue;
using vps::testing::MakeState;
using vps::testing::State;

TEST(PlanRoute, RoutesOfAllRanksFitAndMoveEveryElementOnceAndNoMoreThanNeeded) {
  CheckTriples(1, 500);
}

// The example of route.h.
TEST(PlanRoute, WorkedExample) {
  const auto catalog = OneMatrix({4, 8}, Split::Balanced(0));
  const auto from = MapOf(catalog, "tp=2,dp=1");
  const auto to = MapOf(catalog, "tp=4,dp=1");
  auto routes = AllRoutes(*from, *to, {});
  const auto row = [](int64_t r) { return Piece{0, Box({r, 0}, {r + 1, 8})}; };
  EXPECT_THAT(routes[0].keeps, ElementsAre(row(0)));
  EXPECT_THAT(routes[0].sends, ElementsAre(Transfer{row(1), 1}));
  EXPECT_THAT(routes[0].receives, IsEmpty());
  EXPECT_THAT(routes[1].keeps, IsEmpty());
  EXPECT_THAT(routes[1].sends, ElementsAre(Transfer{row(2), 2}, Transfer{row(3), 3}));
  EXPECT_THAT(routes[1].receives, ElementsAre(Transfer{row(1), 0}));
  EXPECT_THAT(routes[2].receives, ElementsAre(Transfer{row(2), 1}));
  EXPECT_THAT(routes[3].receives, ElementsAre(Transfer{row(3), 1}));
  EXPECT_EQ(routes[1].sent_bytes, 64);
  EXPECT_EQ(routes[0].kept_bytes, 32);
}

TEST(PlanRoute, ARankInNeitherLayoutHasAnEmptyRoute) {
  const auto catalog = OneMatrix({4, 8}, Split::Balanced(0));
  const auto route = PlanRoute(*MapOf(catalog, "tp=2,dp=1"), *MapOf(catalog, "tp=4,dp=1"), {}, 9);
  ASSERT_TRUE(route.ok());
  EXPECT_TRUE(route->keeps.empty() && route->sends.empty() && route->receives.empty());
}

TEST(PlanRoute, SourcesTakeTurns) {
  auto catalog = std::make_shared<StateCatalog>();
  for (int i = 0; i < 12; ++i) {
    Parameter p;
    p.name = fmt::format("p{}", i);
    p.shape = {64};
    p.homes = {vps::Home::Layer(0)};
    p.kinds = {{vps::Kind::kParam, vps::DType::kF32}};
    ASSERT_TRUE(catalog->Add(p).ok());
  }
  // 12 replicated tensors from four holders to one newcomer, to three, and to 60.
  for (const int newcomers : {1, 3, 60}) {
    const auto routes = AllRoutes(*MapOf(catalog, "dp=4"),
                                  *MapOf(catalog, fmt::format("dp={}", 4 + newcomers)), {});
    for (RankId rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(routes.at(rank).sent_bytes, 12 * 256 * newcomers / 4) << newcomers << " newcomers";
    }
  }
}

TEST(PlanRoute, MissingElementsAreNamed) {
  const auto catalog = OneMatrix({4, 8}, Split::Balanced(0));
  const auto whole = MapOf(catalog, "tp=2,dp=1");
  const auto survivors = ExplicitShardMap::Copy(catalog, *whole, {0}, /*allow_missing=*/true);
  ASSERT_TRUE(survivors.ok());
  const auto route = PlanRoute(**survivors, *MapOf(catalog, "tp=1,dp=1"), {}, 0);
  EXPECT_EQ(route.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(route.status().message(), HasSubstr("w/param"));
  EXPECT_THAT(route.status().message(), HasSubstr("[0:4, 0:8]"));
}

// C30: newcomers 0 and 2 take everything from the old holders 1 and 3, never from each other.
TEST(PlanRoute, ANewcomerIsNeverASource) {
  const auto catalog = OneMatrix({6, 5}, Split::None());
  const auto routes = AllRoutes(*MapOf(catalog, "dp=2,ranks=1+3"), *MapOf(catalog, "dp=4"), {});
  EXPECT_TRUE(routes.at(0).sends.empty() && routes.at(2).sends.empty());
  for (const RankId rank : {0, 2}) {
    for (const Transfer& t : routes.at(rank).receives) EXPECT_TRUE(t.peer == 1 || t.peer == 3);
    EXPECT_EQ(routes.at(rank).received_bytes, 120);
  }
}

TEST(PlanRoute, RefusesMapsOfDifferentCatalogs) {
  const auto a = MapOf(OneMatrix({4, 8}, Split::Balanced(0)), "tp=2,dp=1");
  const auto b = MapOf(OneMatrix({4, 9}, Split::Balanced(0)), "tp=2,dp=1");
  EXPECT_EQ(PlanRoute(*a, *b, {}, 0).status().code(), StatusCode::kInvalidArgument);
}

// Counts what a planner asks, and whom about.
class CountingMap final : public ShardMap {
 public:
  CountingMap(std::shared_ptr<const ShardMap> map, RankId rank)
      : map_(std::move(map)), rank_(rank) {}
  const StateCatalog& catalog() const override { return map_->catalog(); }
  std::vector<RankId> Ranks() const override {
    ++of_others;
    return map_->Ranks();
  }
  std::vector<vps::Buffer> BuffersOf(RankId rank) const override {
    of_others += rank == rank_ ? 0 : 1;
    return map_->BuffersOf(rank);
  }
  std::vector<Shard> ShardsOf(RankId rank) const override {
    of_others += rank == rank_ ? 0 : 1;
    return map_->ShardsOf(rank);
  }
  void VisitHolders(TensorId tensor, const Box& box, const HolderVisitor& visit) const override {
    map_->VisitHolders(tensor, box, [&](const Box& part, const HolderSet& holders) {
      ++parts;
      visit(part, holders);
    });
  }
  uint64_t Fingerprint() const override { return map_->Fingerprint(); }

  mutable int of_others = 0;
  mutable int64_t parts = 0;

 private:
  std::shared_ptr<const ShardMap> map_;
  RankId rank_;
};

TEST(PlanRoute, VisitsNoOtherRanksPieces) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto [catalog, from, to] = RandomMaps(&random);
    for (const RankId rank : UnionOfRanks(*from, *to)) {
      const CountingMap counted_from(from, rank);
      const CountingMap counted_to(to, rank);
      const auto route = PlanRoute(counted_from, counted_to, {}, rank);
      ASSERT_TRUE(route.ok());
      EXPECT_EQ(counted_from.of_others + counted_to.of_others, 0);
      // Every part visited is one of this rank's own: it keeps, receives or holds it.
      int64_t own = static_cast<int64_t>(route->keeps.size() * 2 + route->receives.size() * 2);
      for (const Shard& shard : from->ShardsOf(rank)) {
        from->VisitHolders(shard.tensor, shard.box, [&](const Box& part, const HolderSet&) {
          ++own;
          to->VisitHolders(shard.tensor, part, [&](const Box&, const HolderSet&) { ++own; });
        });
      }
      EXPECT_LE(counted_from.parts + counted_to.parts, own);
    }
  }
}

TEST(PlanRoute, CostDoesNotGrowWithTheWorld) {
  const auto catalog = OneMatrix({8, 512}, Split::Balanced(0));
  const auto parts = [&](int dp) {
    const auto from =
        std::make_shared<CountingMap>(MapOf(catalog, fmt::format("tp=4,dp={}", dp)), 1);
    const CountingMap to(MapOf(catalog, fmt::format("tp=2,dp={}", 2 * dp)), 1);
    EXPECT_TRUE(PlanRoute(*from, to, {}, 1).ok());
    return from->parts + to.parts;
  };
  EXPECT_EQ(parts(2), parts(128));
}

// C05: [q k v] per shard against [Q | K | V]: one logical tensor of blocks, split by block.
TEST(Cases, C05FusedBlocksKeepTheirOrder) {
  const auto catalog =
      OneMatrix({4, 3, 2, 5}, Split::Balanced(0));  // groups, q|k|v, head_dim, hidden
  const auto tp2 = MapOf(catalog, "tp=2,dp=1");
  // At one rank, stored as three concatenated blocks: all Q, all K, all V.
  ExplicitShardMap::Holding concatenated{
      0, {{"qkv", vps::Kind::kParam, vps::DType::kF32, 120}}, {}};
  for (int64_t b = 0; b < 3; ++b) {
    concatenated.shards.push_back(
        {0, Box({0, b, 0, 0}, {4, b + 1, 2, 5}), 0, b * 40, {10, 10, 5, 1}});
  }
  const auto one = ExplicitShardMap::Make(catalog, {concatenated});
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  const State state = MakeState(*tp2, DistinctValue);
  const State joined = Apply(*tp2, state, **one, AllRoutes(*tp2, **one, {}));
  EXPECT_EQ(joined, MakeState(**one, DistinctValue));
  const auto tp4 = MapOf(catalog, "tp=4,dp=1");
  EXPECT_EQ(Apply(**one, joined, *tp4, AllRoutes(**one, *tp4, {})), MakeState(*tp4, DistinctValue));
}

std::shared_ptr<const StateCatalog> FlatParameters(const std::vector<int64_t>& sizes) {
  auto catalog = std::make_shared<StateCatalog>();
  for (size_t i = 0; i < sizes.size(); ++i) {
    Parameter p;
    p.name = fmt::format("p{}", i);
    p.shape = {sizes[i]};
    p.homes = {vps::Home::Layer(0)};
    p.kinds = vps::Fp32AdamKinds();
    EXPECT_TRUE(catalog->Add(p).ok());
  }
  return catalog;
}

// Moves state along a chain of layouts and compares every element after each hop.
void ExpectChain(const std::shared_ptr<const StateCatalog>& catalog,
                 const std::vector<std::string>& specs) {
  std::shared_ptr<const LayoutShardMap> current = MapOf(catalog, specs[0]);
  State state = MakeState(*current, DistinctValue);
  for (size_t i = 1; i < specs.size(); ++i) {
    SCOPED_TRACE(fmt::format("{} to {}", specs[i - 1], specs[i]));
    const auto next = MapOf(catalog, specs[i]);
    const auto routes = AllRoutes(*current, *next, {});
    ExpectSendsMatchReceives(routes);
    state = Apply(*current, state, *next, routes);
    EXPECT_EQ(state, MakeState(*next, DistinctValue));
    EXPECT_EQ(Received(routes), BruteForceMovedBytes(*current, *next));
    current = next;
  }
}

TEST(Cases, C01RanksThatOwnOnlyPadding) {
  ExpectChain(FlatParameters({5}), {"dp=8,zero=1", "dp=2,zero=1", "dp=8,zero=1", "dp=1,zero=1"});
  ExpectChain(FlatParameters({1}), {"dp=4,zero=1", "dp=1,zero=1", "dp=4,zero=1"});
}

TEST(Cases, C02FillerThatCrossesTheEndOfTheData) {
  const std::string order = "zero_order=forward-contiguous-end:128";
  const auto catalog = FlatParameters({50, 48});
  ExpectChain(catalog, {"dp=4,zero=1," + order, "dp=2,zero=1," + order, "dp=4,zero=1," + order});
  const auto map = MapOf(catalog, "dp=4,zero=1," + order);
  ByteCount moments = 0;
  for (RankId rank = 0; rank < 4; ++rank) {
    for (const Shard& shard : map->ShardsOf(rank)) {
      if (catalog->tensor(shard.tensor).kind == vps::Kind::kExpAvg) moments += shard.box.elems();
    }
  }
  EXPECT_EQ(moments, 98);
}

TEST(Cases, C03AlignmentThatDependsOnDp) {
  const std::string order = ",zero=1,zero_order=forward-contiguous-endx:2";
  ExpectChain(FlatParameters({20, 37}),
              {"dp=2" + order, "dp=4" + order, "dp=3" + order, "dp=2" + order});
}

TEST(Cases, C04OddDpSizesAndSeveralBuckets) {
  const std::string order = ",zero=1,zero_order=forward-bucketed:17";
  ExpectChain(FlatParameters({18, 10, 7}),
              {"dp=2" + order, "dp=3" + order, "dp=5" + order, "dp=7" + order, "dp=1" + order});
}

TEST(BruteForceMovedBytes, CountsWhatIsNotThereYet) {
  const auto catalog = OneMatrix({4, 8}, Split::Balanced(0));
  EXPECT_EQ(BruteForceMovedBytes(*MapOf(catalog, "tp=2,dp=1"), *MapOf(catalog, "tp=4,dp=1")),
            3 * 32);
  EXPECT_EQ(BruteForceMovedBytes(*MapOf(catalog, "tp=2,dp=1"), *MapOf(catalog, "tp=2,dp=1")), 0);
  EXPECT_EQ(BruteForceMovedBytes(*MapOf(catalog, "tp=1,dp=1"), *MapOf(catalog, "tp=1,dp=3")),
            2 * 128);
}

}  // namespace
}  // namespace dynatrain::planner
