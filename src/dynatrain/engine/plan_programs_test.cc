#include "dynatrain/engine/plan_programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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

// The budget in granules that is asked for here: any state of the random catalogs is far smaller.
CompileOptions Streamed() {
  return {.mode = Mode::kStream, .granule_bytes = 4096, .transport_bytes = 0};
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
    EXPECT_EQ(free->phases, 1);
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
    cut += tight->phases > 1 ? 1 : 0;
    EXPECT_LE(tight->peak_extra_bytes, peak / 2);
    for (const Program& program : tight->programs) {
      EXPECT_EQ(program.phases.size(), static_cast<size_t>(tight->phases));
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
