#include "dynatrain/engine/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "dynatrain/engine/fair_share.h"
#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::engine {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using vps::LayoutShardMap;
using vps::testing::MapOf;

std::shared_ptr<const vps::StateCatalog> Matrix(int64_t rows, int64_t columns) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  vps::Parameter p;
  p.name = "w";
  p.shape = {rows, columns};
  p.split = vps::Split::Balanced(0);
  p.homes = {vps::Home::Layer(0)};
  p.kinds = {{vps::Kind::kParam, vps::DType::kF32}};
  EXPECT_TRUE(catalog->Add(p).ok());
  return catalog;
}

SimulationReport RunSimulation(const vps::ShardMap& from, const vps::ShardMap& to,
                               const planner::Topology& topology,
                               const SimulationOptions& options) {
  const auto programs = testing::CompileAll(from, to, topology, testing::UnionOfRanks(from, to));
  auto report = Simulate(programs, topology, options);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return *std::move(report);
}

SimulationOptions WireOnly() {
  return {.verify = Verify::kOff,
          .latency_s = 0,
          .message_s = 0,
          .copy_bytes_per_s = 0,
          .check_bytes_per_s = 0};
}

TEST(FairRates, FillLinksTogether) {
  EXPECT_THAT(FairRates({10}, {{0}, {0}}), ElementsAre(5, 5));
  // Two flows share link 0; one of them is held back by link 1, the other takes the rest.
  EXPECT_THAT(FairRates({10, 3}, {{0, 1}, {0}}), ElementsAre(3, 7));
  EXPECT_THAT(FairRates({12, 12, 4}, {{0}, {0, 1}, {1, 2}, {2}}), ElementsAre(6, 6, 2, 2));
  EXPECT_THAT(FairRates({5}, {}), ElementsAre());
}

TEST(FairRates, NoLinkIsOverfullAndEveryFlowHasAFullLink) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    std::vector<double> capacity(static_cast<size_t>(random.Between(1, 8)));
    for (double& c : capacity) c = static_cast<double>(random.Between(1, 100));
    std::vector<std::vector<int32_t>> links(static_cast<size_t>(random.Between(1, 20)));
    for (auto& l : links) {
      for (size_t i = 0; i < capacity.size(); ++i) {
        if (random.OneIn(3)) l.push_back(static_cast<int32_t>(i));
      }
      if (l.empty()) l.push_back(0);
    }
    const auto rates = FairRates(capacity, links);
    std::vector<double> used(capacity.size());
    for (size_t f = 0; f < links.size(); ++f) {
      for (const int32_t l : links[f]) used[static_cast<size_t>(l)] += rates[f];
    }
    for (size_t l = 0; l < capacity.size(); ++l) EXPECT_LE(used[l], capacity[l] * (1 + 1e-6));
    for (const auto& l : links) {
      EXPECT_TRUE(std::any_of(l.begin(), l.end(),
                              [&](int32_t i) {
                                return used[static_cast<size_t>(i)] >=
                                       capacity[static_cast<size_t>(i)] * (1 - 1e-6);
                              }))
          << "seed " << seed;
    }
  }
}

// One rank gives a newcomer 4 MB over a link of 1 GB/s: 4 ms, and with everything else that it
// costs by hand.
TEST(Simulate, OneMessageTakesWhatItShould) {
  const auto catalog = Matrix(1000, 1000);
  const auto from = MapOf(catalog, "dp=1");
  const auto to = MapOf(catalog, "dp=1,ranks=1");
  const planner::Topology topology{.intra_node_bytes_per_s = 1e9};
  EXPECT_THAT(RunSimulation(*from, *to, topology, WireOnly()).seconds, DoubleNear(4e-3, 1e-9));
  SimulationOptions all{
      .latency_s = 1e-3, .message_s = 1e-4, .copy_bytes_per_s = 1e9, .check_bytes_per_s = 2e9};
  all.timeline = true;
  const auto report = RunSimulation(*from, *to, topology, all);
  // Post, check of the one chunk at the source, latency, 4,000,008 bytes, check at the destination;
  // nothing is packed.
  EXPECT_THAT(report.seconds, DoubleNear(1e-4 + 2e-3 + 1e-3 + 4.000008e-3 + 2e-3, 1e-9));
  EXPECT_EQ(report.wire_bytes, 4'000'008);
  EXPECT_EQ(report.cross_node_bytes, 0);
  EXPECT_EQ(report.timeline.size(), 3U);
  EXPECT_EQ(report.links.front().name, "rank 0 out");
}

// Two nodes of two ranks: both ranks of node 0 send all they have to node 1 over one shared link.
TEST(Simulate, NodesShareTheirLink) {
  const auto catalog = Matrix(1000, 1000);
  const planner::Topology topology{
      .ranks_per_node = 2, .intra_node_bytes_per_s = 1e9, .inter_node_bytes_per_s = 5e8};
  const auto report = RunSimulation(*MapOf(catalog, "tp=2,dp=1"),
                                    *MapOf(catalog, "tp=2,dp=1,ranks=2+3"), topology, WireOnly());
  EXPECT_THAT(report.seconds, DoubleNear(8e-3, 1e-9));
  EXPECT_EQ(report.cross_node_bytes, 4'000'000);
  EXPECT_EQ(report.links.front().name, "node 0 out");
  EXPECT_THAT(report.bound_seconds(), DoubleNear(8e-3, 1e-9));
}

// Whatever the program, no faster than its fullest link, and with free processors not far from it.
TEST(Simulate, RandomProgramsEndAndKeepToTheBound) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto catalog = vps::testing::RandomCatalog(&random, 0);
    const auto from =
        *LayoutShardMap::Make(catalog, vps::testing::RandomLayout(&random, *catalog, 0));
    const auto to =
        *LayoutShardMap::Make(catalog, vps::testing::RandomLayout(&random, *catalog, 0));
    const planner::Topology topology{.ranks_per_node = static_cast<int32_t>(random.Between(1, 6)),
                                     .intra_node_bytes_per_s = 3e9,
                                     .inter_node_bytes_per_s = 1e9};
    CompileOptions options{.mode = random.OneIn(2) ? Mode::kKeep : Mode::kStream,
                           .phases = static_cast<int32_t>(random.Between(1, 5))};
    const auto programs =
        testing::CompileAll(*from, *to, topology, testing::UnionOfRanks(*from, *to), options);
    const auto report = Simulate(programs, topology, {.timeline = true});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_GE(report->seconds, report->bound_seconds());
    ByteCount sent = 0;
    for (const Program& program : programs) sent += program.stats.sent_bytes;
    EXPECT_GE(report->wire_bytes, sent);
    EXPECT_EQ(report->seconds,
              *std::max_element(report->rank_seconds.begin(), report->rank_seconds.end()));
    for (const TimelineEntry& entry : report->timeline) {
      EXPECT_LE(entry.begin_s, entry.end_s);
      EXPECT_LE(entry.end_s, report->seconds + 1e-12);
    }
    const auto again = Simulate(programs, topology, {.timeline = true});
    EXPECT_EQ(again->seconds, report->seconds);
  }
}

// The longest latency and the fastest link that a topology may have: around 10 s a double tells no
// times apart in which such a link carries less than two bytes.
TEST(Simulate, EndsWhereTheLastBytesTakeLessThanAMomentOfVirtualTime) {
  const planner::Topology topology{.intra_node_bytes_per_s = 1e15};
  for (int64_t rows = 1; rows <= 64; ++rows) {
    const auto catalog = Matrix(rows, 999);
    SimulationOptions options = WireOnly();
    options.latency_s = 10;
    const auto report =
        RunSimulation(*MapOf(catalog, "dp=1"), *MapOf(catalog, "dp=1,ranks=1"), topology, options);
    EXPECT_THAT(report.seconds, DoubleNear(10, 1e-9));
  }
}

TEST(Simulate, ABalancedExchangeComesCloseToItsBound) {
  const auto catalog = Matrix(1 << 12, 1 << 10);
  const planner::Topology topology{
      .ranks_per_node = 4, .intra_node_bytes_per_s = 2e10, .inter_node_bytes_per_s = 1e10};
  const auto report =
      RunSimulation(*MapOf(catalog, "tp=16,dp=1"), *MapOf(catalog, "tp=4,dp=4,order=dp-tp-pp"),
                    topology, WireOnly());
  EXPECT_LE(report.seconds, 1.25 * report.bound_seconds());
}

TEST(Simulate, RefusesLinksWithoutARate) {
  EXPECT_EQ(Simulate({}, {.inter_node_bytes_per_s = 0}, {}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dynatrain::engine
