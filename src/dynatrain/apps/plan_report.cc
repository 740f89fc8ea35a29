#include "dynatrain/apps/plan_report.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "dynatrain/apps/format.h"
#include "dynatrain/apps/plan_page.h"
#include "dynatrain/base/json.h"

namespace dynatrain::apps {
namespace {

using planner::Fullest;
using planner::Plan;
using planner::PlanTotals;
using planner::Route;
using planner::Topology;
using planner::Traffic;
using planner::Transfer;

constexpr size_t kMostRanksInTable = 16;

// Rows send, columns receive; in the largest unit in which the table stays readable.
std::string TrafficTable(const Traffic& traffic, const std::string& prefix,
                         const std::set<int32_t>& ids) {
  ByteCount most = 1;
  for (const auto& [pair, bytes] : traffic) most = std::max(most, bytes);
  const bool giga = most >= 1'000'000'000;
  const double unit = giga ? 1e9 : most >= 1'000'000 ? 1e6 : 1e3;
  std::string text = fmt::format("traffic in {}, rows send, columns receive\n{:>6}",
                                 giga                ? "GB"
                                 : most >= 1'000'000 ? "MB"
                                                     : "kB",
                                 "");
  for (const int32_t id : ids) text += fmt::format("{:>8}", prefix + std::to_string(id));
  text += fmt::format("{:>9}\n", "out");
  std::map<int32_t, ByteCount> in;
  for (const int32_t source : ids) {
    ByteCount out = 0;
    text += fmt::format("{:>6}", prefix + std::to_string(source));
    for (const int32_t target : ids) {
      const auto it = traffic.find({source, target});
      const ByteCount bytes = it == traffic.end() ? 0 : it->second;
      text += bytes == 0 ? fmt::format("{:>8}", ".")
                         : fmt::format("{:>8.2f}", static_cast<double>(bytes) / unit);
      out += source == target ? 0 : bytes;
      in[target] += source == target ? 0 : bytes;
    }
    text += fmt::format("{:>9.2f}\n", static_cast<double>(out) / unit);
  }
  text += fmt::format("{:>6}", "in");
  for (const int32_t id : ids) text += fmt::format("{:>8.2f}", static_cast<double>(in[id]) / unit);
  return text + "\n";
}

std::string NameOfFullest(const std::string& what, const Fullest& fullest) {
  if (fullest.id < 0) return "none";
  return fmt::format("{} ({} {})", FormatBytes(fullest.bytes), what, fullest.id);
}

std::string ProgramsText(const PlanReport& report) {
  if (!report.programs) return "";
  const ProgramFigures& p = *report.programs;
  std::string text = fmt::format(
      "  programs    {} messages in {} {}, predicted {:.4f} s, {} extra memory on rank {}\n",
      p.messages, p.phases, p.phases == 1 ? "phase" : "phases", p.predicted_seconds,
      FormatBytes(p.peak_extra_bytes), p.peak_rank);
  std::vector<std::string> assumed;
  for (const auto& [key, value] : report.request.topology.assumed) {
    assumed.push_back(fmt::format("{} {:g}", key, value));
  }
  if (!assumed.empty()) {
    text += fmt::format("              assumed, as the topology does not tell: {}\n",
                        fmt::join(assumed, ", "));
  }
  return text;
}

}  // namespace

std::string RoleText(const vps::Layout& layout, RankId rank) {
  const std::optional<int32_t> position = layout.PositionOfRank(rank);
  if (!position) return "nothing";
  const vps::Role role = layout.RoleAt(*position);
  std::string text = fmt::format("stage {}, tp {}, dp {}", role.pp, role.tp, role.dp);
  if (layout.cp > 1) text += fmt::format(", cp {}", role.cp);
  if (layout.ep > 1 || layout.etp > 1) {
    const vps::ExpertRole expert = layout.ExpertRoleAt(*position);
    text += fmt::format(", ep {}, etp {}", expert.ep, expert.etp);
  }
  return text;
}

Traffic TrafficByNode(const Traffic& traffic, const Topology& topology) {
  Traffic by_node;
  for (const auto& [pair, bytes] : traffic) {
    by_node[{topology.NodeOf(pair.first), topology.NodeOf(pair.second)}] += bytes;
  }
  return by_node;
}

nlohmann::json ReportAsJson(const PlanReport& report) {
  const PlanTotals& t = report.plan->totals;
  nlohmann::json json = {
      {"model", report.model},
      {"from", report.request.from.ToString()},
      {"to", report.plan->to.ToString()},
      {"topology", report.request.topology.name},
      {"roles", report.request.roles == planner::RolePolicy::kFree ? "free" : "identity"},
      {"derive", report.request.options.derive},
      {"mode", report.mode == engine::Mode::kKeep ? "keep" : "stream"},
      {"moved_bytes", t.moved_bytes},
      {"wire_bytes", t.wire_bytes},
      {"relayed_bytes", t.relayed_bytes},
      {"kept_bytes", t.kept_bytes},
      {"derived_bytes", t.derived_bytes},
      {"lower_bound_bytes", t.lower_bound_bytes},
      {"max_rank_in_bytes", t.rank_in.bytes},
      {"max_rank_out_bytes", t.rank_out.bytes},
      {"max_node_in_bytes", t.node_in.bytes},
      {"max_node_out_bytes", t.node_out.bytes},
      {"cross_node_bytes", t.cross_node_bytes},
      {"bound_seconds", t.bound_seconds},
      {"fullest_link_seconds", t.fullest_link_seconds},
      {"planning_seconds", report.planning_seconds},
      {"assumed", nlohmann::json::object()},
      {"programs_cross_node_bytes", nullptr},
      {"messages", nullptr},
      {"phases", nullptr},
      {"peak_extra_bytes", nullptr},
      {"predicted_seconds", nullptr},
  };
  for (const auto& [key, value] : report.request.topology.assumed) json["assumed"][key] = value;
  if (report.programs) {
    json["programs_cross_node_bytes"] = report.programs->cross_node_bytes;
    json["messages"] = report.programs->messages;
    json["phases"] = report.programs->phases;
    json["peak_extra_bytes"] = report.programs->peak_extra_bytes;
    json["predicted_seconds"] = report.programs->predicted_seconds;
  }
  return json;
}

std::string ReportAsText(const PlanReport& report) {
  const Plan& plan = *report.plan;
  const PlanTotals& t = plan.totals;
  const Topology& topology = report.request.topology;
  std::string text = fmt::format(
      "{}: {} -> {}\non {}, planned in {:.3f} s\n"
      "  moved       {} (bound {}{}), {} of it between nodes\n"
      "  on the wire {}, {} of it passed on inside nodes\n"
      "  kept        {}\n",
      report.model, report.request.from.ToString(), plan.to.ToString(), topology.name,
      report.planning_seconds, FormatBytes(t.moved_bytes), FormatBytes(t.lower_bound_bytes),
      t.derived_bytes > 0 ? " without --derive" : "", FormatBytes(t.cross_node_bytes),
      FormatBytes(t.wire_bytes), FormatBytes(t.relayed_bytes), FormatBytes(t.kept_bytes));
  if (t.derived_bytes > 0) text += fmt::format("  derived     {}\n", FormatBytes(t.derived_bytes));
  text += fmt::format("  fullest     in {}, out {}, in {}, out {}\n",
                      NameOfFullest("rank", t.rank_in), NameOfFullest("rank", t.rank_out),
                      NameOfFullest("node", t.node_in), NameOfFullest("node", t.node_out));
  text += fmt::format("  seconds     {:.4f} on the fullest link; bound {:.4f}\n",
                      t.fullest_link_seconds, t.bound_seconds);
  text += ProgramsText(report);
  const Traffic traffic = planner::TrafficOf(plan.routes, *report.request.catalog);
  std::set<int32_t> nodes;
  for (const RankId rank : plan.ranks) nodes.insert(topology.NodeOf(rank));
  if (nodes.size() > 1) return text + TrafficTable(TrafficByNode(traffic, topology), "n", nodes);
  if (plan.ranks.size() > kMostRanksInTable) {
    return text +
           fmt::format("{} ranks on one node: --report FILE draws them\n", plan.ranks.size());
  }
  return text + TrafficTable(traffic, "r", {plan.ranks.begin(), plan.ranks.end()});
}

std::string ReportAsHtml(const PlanReport& report) {
  const Plan& plan = *report.plan;
  nlohmann::json data = {{"summary", ReportAsJson(report)}, {"ranks", plan.ranks}};
  std::map<RankId, size_t> index;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    const RankId rank = plan.ranks[i];
    index[rank] = i;
    data["nodes"].push_back(report.request.topology.NodeOf(rank));
    data["old"].push_back(RoleText(report.request.from, rank));
    data["new"].push_back(RoleText(plan.to, rank));
    data["kept"].push_back(plan.routes[i].kept_bytes);
  }
  data["cells"] = nlohmann::json::array();
  for (const auto& [pair, bytes] : planner::TrafficOf(plan.routes, *report.request.catalog)) {
    data["cells"].push_back({index.at(pair.first), index.at(pair.second), bytes});
  }
  // "</" would end the script.
  std::string text = DumpJson(data);
  for (size_t at = text.find("</"); at != std::string::npos; at = text.find("</", at + 3)) {
    text.replace(at, 2, "<\\/");
  }
  return std::string(kPlanPageHead) + text + std::string(kPlanPageTail);
}

}  // namespace dynatrain::apps
