#include "dynatrain/engine/plan_programs.h"

#include <algorithm>

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

// What the ranks agree on by one reduction after another, until all fit.
Result<int32_t> AgreedPhases(const Plan& plan, const Topology& topology, CompileOptions options,
                             ByteCount budget) {
  while (true) {
    int32_t most = options.phases;
    for (const planner::Route& route : plan.routes) {
      DT_ASSIGN_OR_RETURN(
          const int32_t phases,
          FewestPhases(route, *plan.from_map, *plan.to_map, topology, plan.ranks, options, budget));
      most = std::max(most, phases);
    }
    if (most == options.phases) return most;
    options.phases = most;
  }
}

}  // namespace

bool CanCompile(const Plan& plan) {
  return plan.totals.relayed_bytes == 0 && plan.totals.derived_bytes == 0;
}

Result<PlanPrograms> CompilePlan(const Plan& plan, const Topology& topology,
                                 const CompileOptions& options, std::optional<ByteCount> budget) {
  if (!CanCompile(plan)) {
    return InvalidArgument("programs cannot carry out {} relayed and {} derived bytes",
                           plan.totals.relayed_bytes, plan.totals.derived_bytes);
  }
  CompileOptions agreed = options;
  if (budget) {
    DT_ASSIGN_OR_RETURN(agreed.phases, AgreedPhases(plan, topology, options, *budget));
  }
  return CompileAll(plan, topology, agreed);
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
