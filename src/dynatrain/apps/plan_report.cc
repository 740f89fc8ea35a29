#include "dynatrain/apps/plan_report.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "dynatrain/apps/plan_page.h"
#include "dynatrain/apps/progress.h"

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

Traffic TrafficByNode(const Traffic& traffic, const Topology& topology) {
  Traffic by_node;
  for (const auto& [pair, bytes] : traffic) {
    by_node[{topology.NodeOf(pair.first), topology.NodeOf(pair.second)}] += bytes;
  }
  return by_node;
}

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

std::string RoleText(const vps::Layout& layout, RankId rank) {
  const std::optional<vps::Role> role = layout.RoleOfRank(rank);
  if (!role) return "nothing";
  return fmt::format("stage {}, tp {}, dp {}", role->pp, role->tp, role->dp);
}

const Route* RouteOf(const Plan& plan, RankId rank) {
  const auto it = std::lower_bound(plan.ranks.begin(), plan.ranks.end(), rank);
  if (it == plan.ranks.end() || *it != rank) return nullptr;
  return &plan.routes[static_cast<size_t>(it - plan.ranks.begin())];
}

ByteCount BytesOf(const vps::StateCatalog& catalog, const planner::Piece& piece) {
  return piece.box.elems() * vps::ElemBytes(catalog.tensor(piece.tensor).dtype);
}

std::string ExplainKinds(const vps::StateCatalog& catalog, const Route& route) {
  std::map<vps::Kind, ByteCount> by_kind;
  for (const auto* list : {&route.receives, &route.relay_receives}) {
    for (const Transfer& t : *list) {
      by_kind[catalog.tensor(t.piece.tensor).kind] += BytesOf(catalog, t.piece);
    }
  }
  std::vector<std::string> parts;
  for (const auto& [kind, bytes] : by_kind) {
    parts.push_back(fmt::format("{} {}", vps::KindName(kind), FormatBytes(bytes)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Why a piece comes from where it does.
std::string ExplainSource(const PlanReport& report, const Transfer& t, RankId rank) {
  const Topology& topology = report.request.topology;
  std::string why;
  report.plan->from_map->VisitHolders(
      t.piece.tensor, t.piece.box, [&](const vps::Box&, const vps::HolderSet& holders) {
        int64_t near = 0;
        for (int64_t i = 0; i < holders.size(); ++i) {
          near += topology.NodeOf(holders.At(i)) == topology.NodeOf(rank) ? 1 : 0;
        }
        if (holders.size() == 1) {
          why = "the only holder";
        } else if (near > 0) {
          why = fmt::format("one of {} holders on the same node, in turns", near);
        } else {
          why = fmt::format("one of {} holders, none on node {}, in turns", holders.size(),
                            topology.NodeOf(rank));
        }
      });
  return fmt::format("  {} {} ({}) from rank {} on node {}: {}\n",
                     report.request.catalog->NameOf(t.piece.tensor), t.piece.box.ToString(),
                     FormatBytes(BytesOf(*report.request.catalog, t.piece)), t.peer,
                     topology.NodeOf(t.peer), why);
}

std::string ExplainRank(const PlanReport& report) {
  const Plan& plan = *report.plan;
  const RankId rank = plan.totals.rank_in.id;
  const Route* route = RouteOf(plan, rank);
  if (route == nullptr) return "no rank takes in anything\n";
  const vps::StateCatalog& catalog = *report.request.catalog;
  std::string text = fmt::format(
      "fullest rank in: rank {} takes in {} of the {} it will hold, and keeps {}\n"
      "  it held {} and takes {}\n  by kind: {}\n",
      rank, FormatBytes(route->received_bytes),
      FormatBytes(route->received_bytes + route->kept_bytes + route->derived_bytes),
      FormatBytes(route->kept_bytes), RoleText(report.request.from, rank), RoleText(plan.to, rank),
      ExplainKinds(catalog, *route));
  std::vector<Transfer> largest = route->receives;
  std::stable_sort(largest.begin(), largest.end(), [&](const Transfer& a, const Transfer& b) {
    return BytesOf(catalog, a.piece) > BytesOf(catalog, b.piece);
  });
  largest.resize(std::min<size_t>(largest.size(), 4));
  if (!largest.empty()) text += "why from there, for its largest pieces:\n";
  for (const Transfer& t : largest) text += ExplainSource(report, t, rank);
  if (!route->relay_receives.empty()) {
    text +=
        fmt::format("  {} more pieces enter the node through its other ranks, which pass them on\n",
                    route->relay_receives.size());
  }
  return text;
}

std::string ExplainNode(const PlanReport& report) {
  const Plan& plan = *report.plan;
  const Topology& topology = report.request.topology;
  if (plan.totals.node_in.id < 0) return "nothing crosses nodes\n";
  const int32_t node = plan.totals.node_in.id;
  std::map<int32_t, ByteCount> sources;
  for (const auto& [pair, bytes] :
       TrafficByNode(planner::TrafficOf(plan.routes, *report.request.catalog), topology)) {
    if (pair.second == node && pair.first != node) sources[pair.first] += bytes;
  }
  std::vector<std::string> parts;
  for (const auto& [source, bytes] : sources) {
    parts.push_back(fmt::format("node {} {}", source, FormatBytes(bytes)));
  }
  const double nics =
      static_cast<double>(plan.totals.node_in.bytes) / topology.inter_node_bytes_per_s;
  return fmt::format(
      "fullest node in: node {} takes in {} over {} NICs, {:.3f} s at {:.0f} GB/s: its ranks need "
      "that much that none of them held\n  from {}\n",
      node, FormatBytes(plan.totals.node_in.bytes), topology.nics_per_node, nics,
      topology.inter_node_bytes_per_s / 1e9, fmt::join(parts, ", "));
}

std::string Saving(const std::string& what, const PlanTotals& now, const PlanTotals& then) {
  return fmt::format(
      "  {}: moves {} instead of {}, {} instead of {} between nodes, bound {:.3f} s "
      "instead of {:.3f} s\n",
      what, FormatBytes(then.moved_bytes), FormatBytes(now.moved_bytes),
      FormatBytes(then.cross_node_bytes), FormatBytes(now.cross_node_bytes),
      then.fullest_link_seconds, now.fullest_link_seconds);
}

Result<std::string> ExplainCheaper(const PlanReport& report) {
  std::string text;
  const PlanTotals& now = report.plan->totals;
  const auto better = [&](const PlanTotals& then) {
    return then.moved_bytes < now.moved_bytes ||
           then.fullest_link_seconds < now.fullest_link_seconds;
  };
  if (report.request.roles == planner::RolePolicy::kIdentity) {
    planner::PlanRequest request = report.request;
    request.roles = planner::RolePolicy::kFree;
    DT_ASSIGN_OR_RETURN(const auto plan, planner::MakePlan(request));
    if (better(plan->totals)) text += Saving("--roles free", now, plan->totals);
  }
  if (!report.request.options.derive) {
    planner::PlanRequest request = report.request;
    request.options.derive = true;
    DT_ASSIGN_OR_RETURN(const auto plan, planner::MakePlan(request));
    if (better(plan->totals)) text += Saving("--derive", now, plan->totals);
  }
  if (report.request.to.ranks.empty() && report.request.from.ranks.empty() &&
      report.request.from.buffer != report.request.to.buffer) {
    planner::PlanRequest request = report.request;
    request.to.buffer = request.from.buffer;
    DT_ASSIGN_OR_RETURN(const auto plan, planner::MakePlan(request));
    if (better(plan->totals)) text += Saving("the old zero_order", now, plan->totals);
  }
  if (text.empty()) return std::string("what would be cheaper: nothing that was tried\n");
  return "what would be cheaper:\n" + text;
}

}  // namespace

nlohmann::json ReportAsJson(const PlanReport& report) {
  const PlanTotals& t = report.plan->totals;
  nlohmann::json json = {
      {"model", report.model},
      {"from", report.request.from.ToString()},
      {"to", report.plan->to.ToString()},
      {"topology", report.request.topology.name},
      {"roles", report.request.roles == planner::RolePolicy::kFree ? "free" : "identity"},
      {"derive", report.request.options.derive},
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
      {"messages", nullptr},
      {"phases", nullptr},
      {"peak_extra_bytes", nullptr},
      {"predicted_seconds", nullptr},
  };
  if (report.programs) {
    json["messages"] = report.programs->messages;
    json["phases"] = report.programs->phases;
    json["peak_extra_bytes"] = report.programs->peak_extra_bytes;
  }
  return json;
}

std::string ReportAsText(const PlanReport& report) {
  const Plan& plan = *report.plan;
  const PlanTotals& t = plan.totals;
  const Topology& topology = report.request.topology;
  std::string text = fmt::format(
      "{}: {} -> {}\non {}, planned in {:.3f} s\n"
      "  moved       {} (bound {}), {} of it between nodes\n"
      "  on the wire {}, {} of it passed on inside nodes\n"
      "  kept        {}\n",
      report.model, report.request.from.ToString(), plan.to.ToString(), topology.name,
      report.planning_seconds, FormatBytes(t.moved_bytes), FormatBytes(t.lower_bound_bytes),
      FormatBytes(t.cross_node_bytes), FormatBytes(t.wire_bytes), FormatBytes(t.relayed_bytes),
      FormatBytes(t.kept_bytes));
  if (t.derived_bytes > 0) text += fmt::format("  derived     {}\n", FormatBytes(t.derived_bytes));
  text += fmt::format("  fullest     in {}, out {}, in {}, out {}\n",
                      NameOfFullest("rank", t.rank_in), NameOfFullest("rank", t.rank_out),
                      NameOfFullest("node", t.node_in), NameOfFullest("node", t.node_out));
  text += fmt::format("  seconds     {:.4f} on the fullest link; bound {:.4f}\n",
                      t.fullest_link_seconds, t.bound_seconds);
  if (report.programs) {
    text += fmt::format("  programs    {} messages, {} extra memory at most on a rank\n",
                        report.programs->messages, FormatBytes(report.programs->peak_extra_bytes));
  }
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

Result<std::string> Explain(const PlanReport& report) {
  DT_ASSIGN_OR_RETURN(const std::string cheaper, ExplainCheaper(report));
  return ExplainRank(report) + ExplainNode(report) + cheaper;
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
  std::string text = data.dump();
  for (size_t at = text.find("</"); at != std::string::npos; at = text.find("</", at + 3)) {
    text.replace(at, 2, "<\\/");
  }
  return std::string(kPlanPageHead) + text + std::string(kPlanPageTail);
}

}  // namespace dynatrain::apps
