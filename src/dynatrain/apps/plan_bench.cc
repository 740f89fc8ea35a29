// All ranks of a 128-rank plan, roles included, and a plan from the cache; on one core.
#include <benchmark/benchmark.h>

#include <string>

#include "dynatrain/base/check.h"
#include "dynatrain/engine/plan_programs.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/models/config.h"
#include "dynatrain/planner/plan.h"

namespace dynatrain::apps {
namespace {

struct Case {
  const char* model;
  const char* from;
  const char* to;
};
constexpr Case kLlama{"llama2-70b", "tp=8,pp=4,dp=4,zero=1", "tp=4,pp=8,dp=4,zero=1"};
constexpr Case kLlamaHard{"llama2-70b", "tp=8,pp=4,dp=4,zero=1",
                          "tp=4,pp=8,dp=4,zero=1,zero_order=reverse-contiguous"};
constexpr Case kQwen{"qwen3-235b-a22b", "tp=4,pp=8,dp=4,ep=8,zero=1",
                     "tp=4,pp=4,dp=8,ep=16,zero=1"};
constexpr Case kQwenHard{"qwen3-235b-a22b", "tp=4,pp=8,dp=4,ep=8,zero=1",
                         "tp=4,pp=4,dp=8,ep=16,zero=1,zero_order=reverse-contiguous"};

planner::PlanRequest RequestOf(const Case& c, planner::RolePolicy roles, bool relays) {
  planner::PlanRequest request;
  const auto model = models::LoadModel(c.model);
  DT_CHECK_MSG(model.ok(), model.status().ToString());
  request.catalog = *models::MakeCatalog(*model, vps::Bf16AdamKinds());
  request.from = *vps::ParseLayout(c.from);
  request.to = *vps::ParseLayout(c.to);
  request.topology = *planner::LoadTopology("a800x16");
  request.roles = roles;
  request.options.relays = relays;
  return request;
}

// 1 plans with free roles, 0 with the identity.
void BM_AllRanks(benchmark::State& state, const Case& c) {
  const auto roles =
      state.range(0) == 1 ? planner::RolePolicy::kFree : planner::RolePolicy::kIdentity;
  const planner::PlanRequest request = RequestOf(c, roles, /*relays=*/true);
  for (auto _ : state) {
    const auto plan = planner::MakePlan(request);
    DT_CHECK_MSG(plan.ok(), plan.status().ToString());
    state.counters["moved_GB"] = static_cast<double>((*plan)->totals.moved_bytes) / 1e9;
    int64_t pieces = 0;
    for (const planner::Route& route : (*plan)->routes) {
      pieces += static_cast<int64_t>(route.keeps.size() + route.receives.size() +
                                     route.relay_receives.size());
    }
    state.counters["pieces"] = static_cast<double>(pieces);
  }
}
BENCHMARK_CAPTURE(BM_AllRanks, llama2_70b, kLlama)
    ->ArgName("free")
    ->DenseRange(0, 1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_AllRanks, llama2_70b_reordered, kLlamaHard)
    ->ArgName("free")
    ->DenseRange(0, 1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_AllRanks, qwen3_235b, kQwen)
    ->ArgName("free")
    ->DenseRange(0, 1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_AllRanks, qwen3_235b_reordered, kQwenHard)
    ->ArgName("free")
    ->DenseRange(0, 1)
    ->Unit(benchmark::kMillisecond);

void BM_CachedPlan(benchmark::State& state) {
  const planner::PlanRequest request =
      RequestOf(kQwen, planner::RolePolicy::kFree, /*relays=*/true);
  planner::PlanCache cache(4);
  const auto first = cache.Get(request);
  DT_CHECK_MSG(first.ok(), first.status().ToString());
  for (auto _ : state) {
    const auto plan = cache.Get(request);
    DT_CHECK(plan.ok() && *plan == *first);
  }
}
BENCHMARK(BM_CachedPlan)->Unit(benchmark::kMicrosecond);

// The programs of all ranks, and their run in virtual time.
void BM_ProgramsAndSimulation(benchmark::State& state, const Case& c) {
  const planner::PlanRequest request = RequestOf(c, planner::RolePolicy::kFree, /*relays=*/false);
  const auto plan = planner::MakePlan(request);
  DT_CHECK_MSG(plan.ok(), plan.status().ToString());
  for (auto _ : state) {
    const auto programs = engine::CompilePlan(**plan, request.topology);
    DT_CHECK_MSG(programs.ok(), programs.status().ToString());
    const auto report = engine::Simulate(programs->programs, request.topology,
                                         engine::SimulationOptionsOf(request.topology));
    DT_CHECK_MSG(report.ok(), report.status().ToString());
    state.counters["messages"] = static_cast<double>(programs->messages);
    state.counters["simulated_s"] = report->seconds;
  }
}
BENCHMARK_CAPTURE(BM_ProgramsAndSimulation, llama2_70b, kLlama)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ProgramsAndSimulation, qwen3_235b, kQwen)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dynatrain::apps
