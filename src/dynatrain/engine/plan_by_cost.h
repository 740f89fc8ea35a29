// Chooses between sending each piece to every rank that needs it and promoting it to a broadcast or
// scatter and gather inside each node, by the time that the programs take in simulation.
#ifndef DYNATRAIN_ENGINE_PLAN_BY_COST_H_
#define DYNATRAIN_ENGINE_PLAN_BY_COST_H_

#include <memory>
#include <optional>
#include <string_view>

#include "dynatrain/engine/plan_programs.h"
#include "dynatrain/engine/simulate.h"
#include "dynatrain/planner/plan.h"

namespace dynatrain::engine {

// Whether pieces are relayed inside nodes.
enum class Relays : uint8_t { kOff, kOn, kByCost };
Result<Relays> ParseRelays(std::string_view name);  // "off", "on", "auto"

// Begins a refusal that is about programs which relay.
inline constexpr std::string_view kWithRelays = "with relays inside nodes";

struct SimulatedPlan {
  std::shared_ptr<const planner::Plan> plan;
  PlanPrograms programs;
  SimulationReport report;
  bool relays = false;
};

// Plans, compiles within `budget` (none: options' phases) and simulates. kByCost takes the faster
// way, the one without relays if they are equal, or the only one that stays within the budget.
// request.options.relays is ignored. kResourceExhausted tells which way which budget would do for.
// Pure.
Result<SimulatedPlan> PlanByCost(const planner::PlanRequest& request, Relays relays,
                                 const CompileOptions& options, std::optional<ByteCount> budget,
                                 const SimulationOptions& simulation);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_PLAN_BY_COST_H_
