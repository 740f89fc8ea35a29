#include "dynatrain/engine/plan_programs.h"

#include "dynatrain/engine/budget.h"

namespace dynatrain::engine {
namespace {

using planner::Plan;
using planner::Topology;

Result<PlanPrograms> CompileAll(const Plan& plan, const Topology& topology,
                                const CompileOptions& options) {
  PlanPrograms all;
  all.phases = options.phases;
  for (const planner::Route& route : plan.routes) {
    DT_ASSIGN_OR_RETURN(Program program, Compile(route, *plan.from_map, *plan.to_map, topology,
                                                 plan.ranks, options));
    all.messages += program.stats.messages;
    if (all.peak_rank < 0 || program.stats.peak_extra_bytes > all.peak_extra_bytes) {
      all.peak_extra_bytes = program.stats.peak_extra_bytes;
      all.peak_rank = program.rank;
    }
    all.programs.push_back(std::move(program));
  }
  return all;
}

// The phases that the ranks agree on by reductions: the fewest with which all of them fit.
Result<PlanPrograms> CompileWithin(const Plan& plan, const Topology& topology,
                                   CompileOptions options, ByteCount budget) {
  constexpr int kMostInVain = 4;
  const int32_t at_least = options.phases;
  ByteCount least = INT64_MAX;
  RankId neediest = -1;
  int in_vain = 0;
  for (const int32_t phases : PhaseCounts()) {
    if (phases < at_least) continue;
    if (in_vain == kMostInVain) break;
    options.phases = phases;
    DT_ASSIGN_OR_RETURN(PlanPrograms all, CompileAll(plan, topology, options));
    if (all.peak_extra_bytes <= budget) return all;
    if (all.peak_extra_bytes < least) {
      least = all.peak_extra_bytes;
      neediest = all.peak_rank;
      in_vain = 0;
    } else {
      ++in_vain;
    }
  }
  return ResourceExhausted(
      "{} bytes of extra memory are not enough for this switch; {} bytes would do, for rank {}",
      budget, least, neediest);
}

}  // namespace

Result<PlanPrograms> CompilePlan(const Plan& plan, const Topology& topology,
                                 const CompileOptions& options, std::optional<ByteCount> budget) {
  if (budget) return CompileWithin(plan, topology, options, *budget);
  return CompileAll(plan, topology, options);
}

SimulationOptions SimulationOptionsOf(const Topology& topology, Verify verify) {
  SimulationOptions options;
  options.verify = verify;
  options.latency_s = topology.latency_s;
  options.message_s = topology.message_s;
  options.copy_bytes_per_s = topology.copy_bytes_per_s;
  options.check_bytes_per_s = topology.check_bytes_per_s;
  return options;
}

}  // namespace dynatrain::engine
