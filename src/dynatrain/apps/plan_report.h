// What `dynatrain plan` shows of a plan: JSON, tables for a terminal, an explanation, a heat map.
#ifndef DYNATRAIN_APPS_PLAN_REPORT_H_
#define DYNATRAIN_APPS_PLAN_REPORT_H_

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "dynatrain/planner/plan.h"

namespace dynatrain::apps {

// What is known of the programs of a plan.
struct ProgramFigures {
  int64_t messages = 0;  // of all ranks
  int32_t phases = 0;
  ByteCount peak_extra_bytes = 0;  // of the rank that needs most
};

struct PlanReport {
  std::string model;
  planner::PlanRequest request;
  std::shared_ptr<const planner::Plan> plan;
  double planning_seconds = 0;
  std::optional<ProgramFigures> programs;  // none: the engine does not compile such routes
};

nlohmann::json ReportAsJson(const PlanReport& report);
// The totals, and who sends how much to whom: by node, or by rank where there is one node of few
// ranks.
std::string ReportAsText(const PlanReport& report);
// Which rank and node are fullest and why, why the largest pieces come from where they do, and what
// would be cheaper. Plans again to find that out.
Result<std::string> Explain(const PlanReport& report);
// A page of its own: the traffic between all ranks as a heat map, grouped by node, with totals.
std::string ReportAsHtml(const PlanReport& report);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_PLAN_REPORT_H_
