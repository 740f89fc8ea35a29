// What the engine's programs for a plan would take: what `dynatrain plan` prints of them.
#ifndef DYNATRAIN_APPS_PLAN_FIGURES_H_
#define DYNATRAIN_APPS_PLAN_FIGURES_H_

#include <optional>

#include "dynatrain/engine/plan_programs.h"
#include "dynatrain/planner/plan.h"

namespace dynatrain::apps {

struct ProgramFigures {
  int64_t messages = 0;  // of all ranks
  int32_t phases = 0;
  ByteCount peak_extra_bytes = 0;  // of the rank that needs most, above max(old, new) state
  RankId peak_rank = -1;
  ByteCount cross_node_bytes = 0;  // data, hashes and acknowledgements
  double predicted_seconds = 0;    // by simulation over the topology, checks of `moved` included
};

// Compiles and simulates the programs of all ranks. The time to compute derived parameters is not in it. kResourceExhausted if
// no number of phases fits `budget`.
Result<ProgramFigures> FiguresOf(const planner::PlanRequest& request, const planner::Plan& plan,
                                 engine::Mode mode, std::optional<ByteCount> budget);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_PLAN_FIGURES_H_
