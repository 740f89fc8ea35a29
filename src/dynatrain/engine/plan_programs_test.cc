#include "dynatrain/engine/plan_programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "dynatrain/engine/plan_by_cost.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::engine {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const planner::Plan> RandomPlan(Random* random, bool relays) {
  planner::PlanRequest request;
  request.catalog = vps::testing::RandomCatalog(random, 0);
  request.from = vps::testing::RandomLayout(random, *request.catalog, 0);
  request.to = vps::testing::RandomLayout(random, *request.catalog, 0);
  request.topology.ranks_per_node = 3;
  request.options.relays = relays;
  const auto plan = planner::MakePlan(request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *plan;
}

// A parameter that is split by columns.
std::shared_ptr<const vps::StateCatalog> OneMatrix(const vps::Coords& shape,
                                                   std::vector<vps::KindSpec> kinds) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  vps::Parameter p;
  p.name = "w";
  p.shape = shape;
  p.split = vps::Split::Balanced(1);
  p.homes = {vps::Home::Layer(0)};
  p.kinds = std::move(kinds);
  EXPECT_TRUE(catalog->Add(p).ok());
  return catalog;
}

// The budget in granules that is asked for here: any state of the random catalogs is far smaller.
CompileOptions Streamed() {
  return {.mode = Mode::kStream, .granule_bytes = 4096, .transport_bytes = 0, .heap_bytes = 0};
}

TEST(CompilePlan, AllRanksHaveEqualPhasesAndStayWithinTheBudget) {
  int cut = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto plan = RandomPlan(&random, /*relays=*/false);
    const planner::Topology topology{.ranks_per_node = 3};
    const auto free = CompilePlan(*plan, topology, Streamed());
    ASSERT_TRUE(free.ok()) << free.status().ToString();
    EXPECT_EQ(free->granularity.phases, 1);
    ASSERT_EQ(free->programs.size(), plan->ranks.size());
    ByteCount peak = INT64_MIN;
    int64_t messages = 0;
    ByteCount received = 0;
    for (const Program& program : free->programs) {
      peak = std::max(peak, program.stats.peak_extra_bytes);
      messages += program.stats.messages;
      received += program.stats.received_bytes;
    }
    EXPECT_EQ(free->peak_extra_bytes, peak);
    EXPECT_EQ(free->messages, messages);
    EXPECT_EQ(received, plan->totals.moved_bytes);

    const auto tight = CompilePlan(*plan, topology, Streamed(), peak / 2);
    if (!tight.ok()) {
      EXPECT_EQ(tight.status().code(), StatusCode::kResourceExhausted);
      EXPECT_THAT(tight.status().message(), HasSubstr("would do"));
      continue;
    }
    cut += tight->granularity.phases > 1 ? 1 : 0;
    EXPECT_LE(tight->peak_extra_bytes, peak / 2);
    for (const Program& program : tight->programs) {
      EXPECT_EQ(program.phases.size(), static_cast<size_t>(tight->granularity.phases));
      EXPECT_LE(program.stats.peak_extra_bytes, peak / 2);
    }
  }
  EXPECT_GT(cut, 3);
}

TEST(CompilePlan, ProgramsRelayWhatThePlanRelays) {
  ByteCount relayed = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    const auto plan = RandomPlan(&random, /*relays=*/true);
    const auto all = CompilePlan(*plan, {.ranks_per_node = 3});
    ASSERT_TRUE(all.ok()) << all.status().ToString();
    ByteCount bytes = 0;
    for (const Program& program : all->programs) {
      for (const Message& message : program.phases[0].sends)
        bytes += message.relayed ? message.bytes : 0;
    }
    EXPECT_EQ(bytes, plan->totals.relayed_bytes) << "seed " << seed;
    relayed += bytes;
  }
  EXPECT_GT(relayed, 0);
}

// Several phases are there to save memory, so that fewer messages are under way than in one.
TEST(CompilePlan, TheWindowIsSmallerWithSeveralPhases) {
  Random random(1);
  const auto plan = RandomPlan(&random, /*relays=*/false);
  const planner::Topology topology{.ranks_per_node = 3};
  const auto window = [&](int32_t phases, int32_t asked) {
    const auto all = CompilePlan(*plan, topology, {.phases = phases, .window = asked});
    EXPECT_TRUE(all.ok()) << all.status().ToString();
    return all->programs.front().window;
  };
  EXPECT_EQ(window(1, kDefaultWindow), 32);
  EXPECT_EQ(window(2, kDefaultWindow), 16);
  EXPECT_EQ(window(2, 3), 3);
  EXPECT_EQ(window(1, 40), 40);
}

// A plan and the ranks of a job meet a budget in the same way, whether granules have to be cut or not.
TEST(CompilePlan, FindsWhatTheRanksAgreeOn) {
  planner::PlanRequest request;
  request.catalog = OneMatrix({1000, 1024}, vps::Fp32AdamKinds());
  request.from = *vps::ParseLayout("dp=3,zero=1");
  request.to = *vps::ParseLayout("tp=2,dp=1");
  const auto plan = planner::MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  CompileOptions options = Streamed();
  options.window = 1;
  options.granule_bytes = 131072;
  std::map<RankId, std::vector<ByteCount>> peaks;
  for (size_t i = 0; i < (*plan)->ranks.size(); ++i) {
    const auto of_rank =
        PeaksByGranularity((*plan)->routes[i], *(*plan)->from_map, *(*plan)->to_map,
                           request.topology, (*plan)->ranks, options);
    ASSERT_TRUE(of_rank.ok()) << of_rank.status().ToString();
    peaks[(*plan)->ranks[i]] = *of_rank;
  }
  std::set<ByteCount> granules;
  for (const int part : {1, 4, 16, 32, 64, 128, 256, 100'000}) {
    SCOPED_TRACE(fmt::format("1/{} of the state", part));
    const ByteCount budget = request.catalog->total_bytes() / part;
    const auto agreed = GranularityWithin(budget, options, peaks);
    const auto planned = CompilePlan(**plan, request.topology, options, budget);
    ASSERT_EQ(agreed.status().code(), planned.status().code());
    granules.insert(agreed.ok() ? agreed->granule_bytes : -1);
    EXPECT_TRUE(!agreed.ok() || planned->granularity == *agreed);
  }
  EXPECT_EQ(granules, (std::set<ByteCount>{-1, 4096, 131072}));
}

// Ranks of another node take in the same matrix three times, or once if one passes it on to others:
// three ranks all rows, which lie in memory as they are sent, or six half of the columns, which the
// source has to pack.
planner::PlanRequest ThreeTakeTheSame(bool columns) {
  planner::PlanRequest request;
  request.catalog = OneMatrix({512, 512}, {{vps::Kind::kParam, vps::DType::kF32}});
  request.from = *vps::ParseLayout("dp=1");
  request.to = *vps::ParseLayout(columns ? "tp=2,dp=3,ranks=6-11" : "dp=3,ranks=6-8");
  request.topology.ranks_per_node = 6;
  return request;
}

TEST(PlanByCost, ARefusalTellsWhichWayNeedsWhat) {
  const planner::PlanRequest request = ThreeTakeTheSame(/*columns=*/false);
  const SimulationOptions simulation = SimulationOptionsOf(request.topology);
  const auto refused = [&](Relays relays, ByteCount budget) {
    const auto plan = PlanByCost(request, relays, {}, budget, simulation);
    EXPECT_EQ(plan.status().code(), StatusCode::kResourceExhausted);
    return plan.status().message();
  };
  const std::string off = refused(Relays::kOff, -1);
  const std::string on = refused(Relays::kOn, -1);
  EXPECT_THAT(off, HasSubstr("without relays: -1 bytes"));
  EXPECT_THAT(on, HasSubstr("with relays inside nodes: -1 bytes"));
  EXPECT_EQ(refused(Relays::kByCost, -1), off + "; " + on);
}

TEST(PlanByCost, TakesTheWayThatStaysWithinTheBudget) {
  for (const bool columns : {false, true}) {
    const planner::PlanRequest request = ThreeTakeTheSame(columns);
    const SimulationOptions simulation = SimulationOptionsOf(request.topology);
    const auto off = PlanByCost(request, Relays::kOff, {}, std::nullopt, simulation);
    const auto on = PlanByCost(request, Relays::kOn, {}, std::nullopt, simulation);
    ASSERT_TRUE(off.ok() && on.ok());
    const ByteCount off_peak = off->programs.peak_extra_bytes;
    const ByteCount on_peak = on->programs.peak_extra_bytes;
    ASSERT_TRUE(columns ? on_peak < off_peak : off_peak < on_peak) << off_peak << " " << on_peak;
    const auto either =
        PlanByCost(request, Relays::kByCost, {}, std::min(off_peak, on_peak), simulation);
    ASSERT_TRUE(either.ok()) << either.status().ToString();
    EXPECT_EQ(either->relays, columns);
    const auto faster = PlanByCost(request, Relays::kByCost, {}, std::nullopt, simulation);
    ASSERT_TRUE(faster.ok());
    EXPECT_EQ(faster->relays, on->report.seconds < off->report.seconds);
  }
}

TEST(SimulationOptionsOf, TakesTheRatesOfTheTopology) {
  const planner::Topology topology{
      .latency_s = 1, .message_s = 2, .copy_bytes_per_s = 3, .check_bytes_per_s = 4};
  const SimulationOptions options = SimulationOptionsOf(topology, Verify::kOff);
  EXPECT_EQ(options.latency_s, 1);
  EXPECT_EQ(options.message_s, 2);
  EXPECT_EQ(options.copy_bytes_per_s, 3);
  EXPECT_EQ(options.check_bytes_per_s, 4);
  EXPECT_EQ(options.verify, Verify::kOff);
}

}  // namespace
}  // namespace dynatrain::engine
