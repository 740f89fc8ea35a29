// The programs of all ranks of a plan, and what can be stated from them before anything runs.
#ifndef DYNATRAIN_ENGINE_PLAN_PROGRAMS_H_
#define DYNATRAIN_ENGINE_PLAN_PROGRAMS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/engine/budget.h"
#include "dynatrain/engine/program.h"
#include "dynatrain/engine/simulate.h"
#include "dynatrain/planner/plan.h"

namespace dynatrain::engine {

// What is derived comes after the programs, see derive.h.
struct PlanPrograms {
  std::vector<Program> programs;   // of plan.ranks, in their order
  Granularity granularity;         // of each
  int64_t messages = 0;            // of all ranks
  ByteCount peak_extra_bytes = 0;  // of the rank that needs most
  RankId peak_rank = -1;
};

// Compiles all ranks with the first of Granularities(options), of options.phases or more, with which
// each stays within `budget` bytes of extra memory (none: with the options as they are): what the
// ranks of a job agree on by budget.h. kResourceExhausted, naming the least budget found that would
// do and the rank that needs it, if none fits. Pure.
Result<PlanPrograms> CompilePlan(const planner::Plan& plan, const planner::Topology& topology,
                                 const CompileOptions& options = {},
                                 std::optional<ByteCount> budget = std::nullopt);

// The simulation's options with the latency and the rates of the topology.
SimulationOptions SimulationOptionsOf(const planner::Topology& topology,
                                      Verify verify = Verify::kMoved);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_PLAN_PROGRAMS_H_
