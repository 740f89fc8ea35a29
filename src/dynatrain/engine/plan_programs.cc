#include "dynatrain/engine/plan_programs.h"

#include <algorithm>

namespace dynatrain::engine {
namespace {

using planner::Plan;
using planner::Topology;

Result<PlanPrograms> CompileAll(const Plan& plan, const Topology& topology,
                                const CompileOptions& options) {
  PlanPrograms all;
  all.granularity = {options.phases, options.granule_bytes};
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

// What the ranks agree on by a reduction; but where many more phases have not helped, the rest is
// not tried.
Result<PlanPrograms> CompileWithin(const Plan& plan, const Topology& topology,
                                   const CompileOptions& options, ByteCount budget) {
  constexpr int kMostInVain = 4;
  CompileOptions tried = options;
  ByteCount least = INT64_MAX;
  RankId neediest = -1;
  ByteCount least_of_granule = INT64_MAX;
  int in_vain = 0;
  for (const Granularity& granularity : Granularities(options)) {
    if (granularity.phases < options.phases) continue;
    if (granularity.granule_bytes != tried.granule_bytes) {
      least_of_granule = INT64_MAX;
      in_vain = 0;
    }
    granularity.ApplyTo(&tried);
    if (in_vain == kMostInVain) continue;
    DT_ASSIGN_OR_RETURN(PlanPrograms all, CompileAll(plan, topology, tried));
    if (all.peak_extra_bytes <= budget) return all;
    in_vain = all.peak_extra_bytes < least_of_granule ? 0 : in_vain + 1;
    least_of_granule = std::min(least_of_granule, all.peak_extra_bytes);
    if (all.peak_extra_bytes >= least) continue;
    least = all.peak_extra_bytes;
    neediest = all.peak_rank;
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
