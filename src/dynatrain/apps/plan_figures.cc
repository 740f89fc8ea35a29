#include "dynatrain/apps/plan_figures.h"

#include "dynatrain/engine/plan_by_cost.h"

namespace dynatrain::apps {

Result<ProgramFigures> FiguresOf(const planner::PlanRequest& request, const planner::Plan& plan,
                                 engine::Mode mode, std::optional<ByteCount> budget) {
  Result<engine::PlanPrograms> compiled =
      engine::CompilePlan(plan, request.topology, {.mode = mode}, budget);
  if (!compiled.ok() && request.options.relays)
    return compiled.status().Within(engine::kWithRelays);
  DT_ASSIGN_OR_RETURN(const engine::PlanPrograms programs, std::move(compiled));
  DT_ASSIGN_OR_RETURN(const engine::SimulationReport simulated,
                      engine::Simulate(programs.programs, request.topology,
                                       engine::SimulationOptionsOf(request.topology)));
  return ProgramFigures{.messages = programs.messages,
                        .phases = programs.granularity.phases,
                        .peak_extra_bytes = programs.peak_extra_bytes,
                        .peak_rank = programs.peak_rank,
                        .cross_node_bytes = simulated.cross_node_bytes,
                        .predicted_seconds = simulated.seconds};
}

}  // namespace dynatrain::apps
