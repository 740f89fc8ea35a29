#include "dynatrain/apps/plan_figures.h"

namespace dynatrain::apps {
namespace {

// The same change without relays.
Result<std::shared_ptr<const planner::Plan>> DirectPlan(const planner::PlanRequest& request,
                                                        const planner::Plan& plan) {
  planner::PlanRequest direct = request;
  direct.to = plan.to;
  direct.roles = planner::RolePolicy::kIdentity;
  direct.options.relays = false;
  return planner::MakePlan(direct);
}

}  // namespace

Result<ProgramFigures> FiguresOf(const planner::PlanRequest& request, const planner::Plan& plan,
                                 engine::Mode mode, std::optional<ByteCount> budget) {
  std::shared_ptr<const planner::Plan> direct;
  if (!engine::CanCompile(plan)) {
    DT_ASSIGN_OR_RETURN(direct, DirectPlan(request, plan));
  }
  const planner::Plan& compiled = direct ? *direct : plan;
  DT_ASSIGN_OR_RETURN(const engine::PlanPrograms programs,
                      engine::CompilePlan(compiled, request.topology, {.mode = mode}, budget));
  DT_ASSIGN_OR_RETURN(const engine::SimulationReport simulated,
                      engine::Simulate(programs.programs, request.topology,
                                       engine::SimulationOptionsOf(request.topology)));
  return ProgramFigures{.relayed = compiled.totals.relayed_bytes > 0,
                        .messages = programs.messages,
                        .phases = programs.phases,
                        .peak_extra_bytes = programs.peak_extra_bytes,
                        .peak_rank = programs.peak_rank,
                        .cross_node_bytes = compiled.totals.cross_node_bytes,
                        .predicted_seconds = simulated.seconds};
}

}  // namespace dynatrain::apps
