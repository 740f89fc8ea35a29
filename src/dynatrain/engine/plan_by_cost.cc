#include "dynatrain/engine/plan_by_cost.h"

#include <set>
#include <utility>

namespace dynatrain::engine {
namespace {

bool OnSeveralNodes(const planner::PlanRequest& request) {
  std::set<int32_t> nodes;
  for (const vps::Layout* layout : {&request.from, &request.to}) {
    for (const RankId rank : layout->Ranks()) nodes.insert(request.topology.NodeOf(rank));
  }
  return nodes.size() > 1;
}

Result<SimulatedPlan> SimulatePlan(planner::PlanRequest request, bool relays,
                                   const CompileOptions& options, std::optional<ByteCount> budget,
                                   const SimulationOptions& simulation) {
  request.options.relays = relays;
  SimulatedPlan result;
  result.relays = relays;
  DT_ASSIGN_OR_RETURN(result.plan, planner::MakePlan(request));
  Result<PlanPrograms> programs = CompilePlan(*result.plan, request.topology, options, budget);
  if (!programs.ok() && OnSeveralNodes(request))
    return programs.status().Within(relays ? kWithRelays : "without relays");
  DT_ASSIGN_OR_RETURN(result.programs, std::move(programs));
  DT_ASSIGN_OR_RETURN(result.report,
                      Simulate(result.programs.programs, request.topology, simulation));
  return result;
}

// For another reason than a budget that is too small for it.
bool Failed(const Result<SimulatedPlan>& plan) {
  return !plan.ok() && plan.status().code() != StatusCode::kResourceExhausted;
}

}  // namespace

Result<Relays> ParseRelays(std::string_view name) {
  if (name == "off") return Relays::kOff;
  if (name == "on") return Relays::kOn;
  if (name == "auto") return Relays::kByCost;
  return InvalidArgument("relays {}: off, on or auto", name);
}

Result<SimulatedPlan> PlanByCost(const planner::PlanRequest& request, Relays relays,
                                 const CompileOptions& options, std::optional<ByteCount> budget,
                                 const SimulationOptions& simulation) {
  if (relays == Relays::kOn) return SimulatePlan(request, true, options, budget, simulation);
  Result<SimulatedPlan> plain = SimulatePlan(request, false, options, budget, simulation);
  if (relays == Relays::kOff || !OnSeveralNodes(request) || Failed(plain)) return plain;
  Result<SimulatedPlan> relayed = SimulatePlan(request, true, options, budget, simulation);
  if (Failed(relayed)) return relayed;
  if (!plain.ok() && !relayed.ok()) {
    return ResourceExhausted("{}; {}", plain.status().message(), relayed.status().message());
  }
  if (!plain.ok() || !relayed.ok()) return plain.ok() ? std::move(plain) : std::move(relayed);
  return relayed->report.seconds < plain->report.seconds ? std::move(relayed) : std::move(plain);
}

}  // namespace dynatrain::engine
