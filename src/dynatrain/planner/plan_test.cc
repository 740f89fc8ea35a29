#include "dynatrain/planner/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/planner/testing_routes.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::planner {
namespace {

using ::testing::HasSubstr;

PlanRequest TwoToFour() {
  PlanRequest request;
  request.catalog = testing::OneMatrix({4, 8}, vps::Split::Balanced(0));
  request.from = *vps::ParseLayout("tp=2,dp=1");
  request.to = *vps::ParseLayout("tp=4,dp=1");
  request.topology = {.ranks_per_node = 2,
                      .intra_node_bytes_per_s = 1e5,
                      .inter_node_bytes_per_s = 1e4,
                      .nodes = 2};
  return request;
}

// The example of route.h: 32 bytes into each of ranks 1, 2 and 3; the latter two are on node 1.
TEST(MakePlan, FiguresOfTheWorkedExample) {
  const auto plan = MakePlan(TwoToFour());
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const PlanTotals& totals = (*plan)->totals;
  EXPECT_EQ(totals.moved_bytes, 96);
  EXPECT_EQ(totals.wire_bytes, 96);
  EXPECT_EQ(totals.kept_bytes, 32);
  EXPECT_EQ(totals.lower_bound_bytes, 96);
  EXPECT_EQ(totals.cross_node_bytes, 64);
  EXPECT_EQ(totals.rank_in.bytes, 32);
  EXPECT_EQ(totals.rank_in.id, 1);
  EXPECT_EQ(totals.rank_out.bytes, 64);
  EXPECT_EQ(totals.rank_out.id, 1);
  EXPECT_EQ(totals.node_in.bytes, 64);
  EXPECT_EQ(totals.node_in.id, 1);
  EXPECT_DOUBLE_EQ(totals.bound_seconds, 6.4e-3);
  EXPECT_DOUBLE_EQ(totals.fullest_link_seconds, 6.4e-3);
}

TEST(MakePlan, RefusesRanksOutsideTheTopology) {
  PlanRequest request = TwoToFour();
  request.topology.nodes = 1;
  EXPECT_THAT(MakePlan(request).status().message(), HasSubstr("rank 2 is on no node"));
}

TEST(PlanCache, FindsPlansAndForgetsTheOldest) {
  PlanCache cache(2);
  const PlanRequest request = TwoToFour();
  const auto first = cache.Get(request);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*cache.Get(request), *first);
  PlanRequest other = request;
  other.topology.latency_s = 1;
  EXPECT_NE(*cache.Get(other), *first);
  other = request;
  other.options.relays = true;
  EXPECT_NE(*cache.Get(other), *first);
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_NE(*cache.Get(request), *first);
  other.to.tp = 3;
  EXPECT_TRUE(cache.Get(other).ok());
  other.to.tp = 0;
  EXPECT_FALSE(cache.Get(other).ok());
  EXPECT_EQ(cache.size(), 2U);
}

// A map and the same thing as a list plan the same bytes for every rank.
TEST(ExplicitMaps, AgreeWithComputedOnes) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto catalog = vps::testing::RandomWideCatalog(&random);
    const auto from = testing::MapOf(catalog, vps::testing::RandomWideLayout(&random, *catalog));
    const auto to = testing::MapOf(catalog, vps::testing::RandomWideLayout(&random, *catalog));
    const auto from_list = vps::ExplicitShardMap::Copy(catalog, *from, {});
    const auto to_list = vps::ExplicitShardMap::Copy(catalog, *to, {});
    ASSERT_TRUE(from_list.ok() && to_list.ok());
    const Topology topology{.ranks_per_node = 3};
    const auto a = testing::AllRoutes(*from, *to, topology, {.relays = true});
    const auto b = testing::AllRoutes(**from_list, **to_list, topology, {.relays = true});
    for (const auto& [rank, route] : a) {
      EXPECT_EQ(route.received_bytes, b.at(rank).received_bytes);
      EXPECT_EQ(route.kept_bytes, b.at(rank).kept_bytes);
    }
    const auto bound = ComputeLowerBound(*from, *to, topology);
    const auto list_bound = ComputeLowerBound(**from_list, **to_list, topology);
    ASSERT_TRUE(bound.ok() && list_bound.ok());
    EXPECT_EQ(bound->rank_in, list_bound->rank_in);
    EXPECT_EQ(bound->node_in, list_bound->node_in);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace dynatrain::planner
