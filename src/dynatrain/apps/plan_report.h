// What `dynatrain plan` shows of a plan: JSON, tables for a terminal, an explanation, a heat map.
#ifndef DYNATRAIN_APPS_PLAN_REPORT_H_
#define DYNATRAIN_APPS_PLAN_REPORT_H_

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "dynatrain/apps/plan_figures.h"
#include "dynatrain/planner/plan.h"

namespace dynatrain::apps {

struct PlanReport {
  std::string model;
  planner::PlanRequest request;
  std::shared_ptr<const planner::Plan> plan;
  double planning_seconds = 0;
  engine::Mode mode = engine::Mode::kKeep;
  std::optional<ProgramFigures> programs;  // none: not asked for
};

// What a rank is in a layout, on all axes that have a degree: "stage 1, tp 0, dp 2, cp 1, ep 3, etp
// 0".
std::string RoleText(const vps::Layout& layout, RankId rank);
planner::Traffic TrafficByNode(const planner::Traffic& traffic, const planner::Topology& topology);

// programs_relay false beside relayed_bytes above 0: messages, peak_extra_bytes, predicted_seconds
// and programs_cross_node_bytes are of programs that send each piece to each rank directly.
nlohmann::json ReportAsJson(const PlanReport& report);
// The totals, and who sends how much to whom: by node, or by rank where there is one node of few
// ranks.
std::string ReportAsText(const PlanReport& report);
// Which ranks and nodes are fullest and why, why the largest pieces come from where they do, and
// what would be cheaper. Plans again to find that out.
Result<std::string> Explain(const PlanReport& report);
// A page of its own: the traffic between all ranks as a heat map, grouped by node, with totals.
std::string ReportAsHtml(const PlanReport& report);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_PLAN_REPORT_H_
