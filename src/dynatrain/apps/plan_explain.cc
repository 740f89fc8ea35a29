// The words of `dynatrain plan --explain`.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "dynatrain/apps/format.h"
#include "dynatrain/apps/plan_report.h"
#include "dynatrain/apps/plan_request.h"

namespace dynatrain::apps {
namespace {

using planner::Plan;
using planner::PlanTotals;
using planner::Route;
using planner::Topology;
using planner::Transfer;

constexpr size_t kPiecesExplained = 4;

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

// Bytes taken in, and the layers that they belong to.
struct Share {
  ByteCount bytes = 0;
  std::set<int32_t> layers;

  void Add(const vps::StateCatalog& catalog, const planner::Piece& piece) {
    bytes += BytesOf(catalog, piece);
    const vps::Home& home = catalog.parameter_of(piece.tensor).homes.front();
    if (home.place == vps::Home::Place::kLayer) layers.insert(home.layer);
  }
  std::string Text() const {
    if (layers.empty()) return FormatBytes(bytes);
    return fmt::format("{} (layers {})", FormatBytes(bytes),
                       vps::FormatRanks({layers.begin(), layers.end()}));
  }
};

// Whether the rank had nothing of what it takes in, or other parts of the same tensors.
std::string ExplainNeed(const PlanReport& report, const Route& route) {
  const vps::StateCatalog& catalog = *report.request.catalog;
  std::set<vps::TensorId> held;
  for (const vps::Shard& shard : report.plan->from_map->ShardsOf(route.rank)) {
    held.insert(shard.tensor);
  }
  Share unknown;
  Share parts;
  for (const auto* list : {&route.receives, &route.relay_receives}) {
    for (const Transfer& t : *list) {
      (held.contains(t.piece.tensor) ? parts : unknown).Add(catalog, t.piece);
    }
  }
  std::string text;
  if (unknown.bytes > 0) {
    text += fmt::format("  {} of tensors it held nothing of\n", unknown.Text());
  }
  if (parts.bytes > 0) {
    text += fmt::format("  {} of tensors it held other parts of\n", parts.Text());
  }
  return text;
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
        } else if (near == 1) {
          why = fmt::format("of {} holders the one on the same node", holders.size());
        } else if (near > 1) {
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

std::string ExplainSources(const PlanReport& report, const Route& route) {
  const vps::StateCatalog& catalog = *report.request.catalog;
  std::vector<Transfer> largest = route.receives;
  std::stable_sort(largest.begin(), largest.end(), [&](const Transfer& a, const Transfer& b) {
    return BytesOf(catalog, a.piece) > BytesOf(catalog, b.piece);
  });
  largest.resize(std::min(largest.size(), kPiecesExplained));
  std::string text;
  if (!largest.empty()) text += "why from there, for its largest pieces:\n";
  for (const Transfer& t : largest) text += ExplainSource(report, t, route.rank);
  if (!route.relay_receives.empty()) {
    text += fmt::format(
        "  {} more pieces enter the node through its other ranks, which pass them on, so that each "
        "crosses nodes once\n",
        route.relay_receives.size());
  }
  return text;
}

std::string ExplainRankIn(const PlanReport& report) {
  const Plan& plan = *report.plan;
  const RankId rank = plan.totals.rank_in.id;
  const Route* route = RouteOf(plan, rank);
  if (route == nullptr) return "no rank takes in anything\n";
  return fmt::format(
             "fullest rank in: rank {} takes in {} of the {} it will hold, and keeps {}\n"
             "  it held {} and takes {}\n{}  by kind: {}\n",
             rank, FormatBytes(route->received_bytes),
             FormatBytes(route->received_bytes + route->kept_bytes + route->derived_bytes),
             FormatBytes(route->kept_bytes), RoleText(report.request.from, rank),
             RoleText(plan.to, rank), ExplainNeed(report, *route),
             ExplainKinds(*report.request.catalog, *route)) +
         ExplainSources(report, *route);
}

std::string ExplainRankOut(const PlanReport& report) {
  const Plan& plan = *report.plan;
  const Route* route = RouteOf(plan, plan.totals.rank_out.id);
  if (route == nullptr) return "";
  const vps::StateCatalog& catalog = *report.request.catalog;
  ByteCount alone = 0;
  ByteCount relayed = 0;
  std::set<RankId> peers;
  for (const Transfer& t : route->sends) {
    peers.insert(t.peer);
    plan.from_map->VisitHolders(t.piece.tensor, t.piece.box,
                                [&](const vps::Box& part, const vps::HolderSet& holders) {
                                  if (holders.size() > 1) return;
                                  alone += BytesOf(catalog, {t.piece.tensor, part});
                                });
  }
  for (const Transfer& t : route->relay_sends) {
    peers.insert(t.peer);
    relayed += BytesOf(catalog, t.piece);
  }
  return fmt::format(
      "fullest rank out: rank {} sends {} to {} ranks: {} as the only holder, {} shared with "
      "others in turns, {} passed on in its node\n",
      route->rank, FormatBytes(route->sent_bytes), peers.size(), FormatBytes(alone),
      FormatBytes(route->sent_bytes - alone - relayed), FormatBytes(relayed));
}

// From or to which nodes, for the fullest node in or out.
std::string ExplainNode(const PlanReport& report, bool in) {
  const Plan& plan = *report.plan;
  const Topology& topology = report.request.topology;
  const planner::Fullest& fullest = in ? plan.totals.node_in : plan.totals.node_out;
  if (fullest.id < 0) return in ? "nothing crosses nodes\n" : "";
  std::vector<std::string> parts;
  for (const auto& [pair, bytes] :
       TrafficByNode(planner::TrafficOf(plan.routes, *report.request.catalog), topology)) {
    const auto& [self, other] = in ? std::pair(pair.second, pair.first) : pair;
    if (self != fullest.id || other == fullest.id) continue;
    parts.push_back(fmt::format("node {} {}", other, FormatBytes(bytes)));
  }
  const double seconds = static_cast<double>(fullest.bytes) / topology.inter_node_bytes_per_s;
  return fmt::format(
      "fullest node {}: node {} {} {} over {} NICs, {:.3f} s at {:.0f} GB/s{}\n  {} {}\n",
      in ? "in" : "out", fullest.id, in ? "takes in" : "sends", FormatBytes(fullest.bytes),
      topology.nics_per_node, seconds, topology.inter_node_bytes_per_s / 1e9,
      in ? ": its ranks need that much that none of them held" : "", in ? "from" : "to",
      fmt::join(parts, ", "));
}

// Which link the seconds of the plan come from.
std::string ExplainLink(const PlanReport& report) {
  const PlanTotals& t = report.plan->totals;
  const Topology& topology = report.request.topology;
  struct Link {
    std::string name;
    double seconds;
  };
  const auto rank = [&](const planner::Fullest& f) {
    return static_cast<double>(f.bytes) / topology.intra_node_bytes_per_s;
  };
  const auto node = [&](const planner::Fullest& f) {
    return static_cast<double>(f.bytes) / topology.inter_node_bytes_per_s;
  };
  const Link links[] = {{fmt::format("rank {} in", t.rank_in.id), rank(t.rank_in)},
                        {fmt::format("rank {} out", t.rank_out.id), rank(t.rank_out)},
                        {fmt::format("node {} in", t.node_in.id), node(t.node_in)},
                        {fmt::format("node {} out", t.node_out.id), node(t.node_out)}};
  const Link& fullest =
      *std::max_element(std::begin(links), std::end(links),
                        [](const Link& a, const Link& b) { return a.seconds < b.seconds; });
  if (fullest.seconds == 0) return "";
  return fmt::format("fullest link: {}, {:.4f} s; no plan with these roles is below {:.4f} s\n",
                     fullest.name, fullest.seconds, t.bound_seconds);
}

std::string Saving(const std::string& what, const PlanTotals& now, const PlanTotals& then) {
  return fmt::format(
      "  {}: moves {} instead of {}, {} instead of {} between nodes, fullest link {:.4f} s "
      "instead of {:.4f} s\n",
      what, FormatBytes(then.moved_bytes), FormatBytes(now.moved_bytes),
      FormatBytes(then.cross_node_bytes), FormatBytes(now.cross_node_bytes),
      then.fullest_link_seconds, now.fullest_link_seconds);
}

struct Alternative {
  std::string what;
  planner::PlanRequest request;
};

// One change each to what was asked for.
std::vector<Alternative> AlternativesTo(const planner::PlanRequest& asked) {
  std::vector<Alternative> all;
  const auto add = [&](std::string what) -> planner::PlanRequest& {
    all.push_back({std::move(what), asked});
    return all.back().request;
  };
  if (asked.roles == planner::RolePolicy::kIdentity) {
    add("--roles free").roles = planner::RolePolicy::kFree;
  }
  if (!asked.options.derive && HasMasters(*asked.catalog)) add("--derive").options.derive = true;
  if (asked.from.buffer != asked.to.buffer) {
    add("the old zero_order").to.buffer = asked.from.buffer;
  }
  if (asked.from.order != asked.to.order) add("the old order").to.order = asked.from.order;
  return all;
}

Result<std::string> ExplainCheaper(const PlanReport& report) {
  std::string text;
  const PlanTotals& now = report.plan->totals;
  std::vector<std::string> tried;
  for (const Alternative& alternative : AlternativesTo(report.request)) {
    tried.push_back(alternative.what);
    const auto plan = planner::MakePlan(alternative.request);
    if (!plan.ok()) continue;  // it does not fit the model
    const PlanTotals& then = (*plan)->totals;
    if (then.moved_bytes < now.moved_bytes ||
        then.fullest_link_seconds < now.fullest_link_seconds) {
      text += Saving(alternative.what, now, then);
    }
  }
  if (!text.empty()) return "what would be cheaper:\n" + text;
  return fmt::format("what would be cheaper: nothing of what was tried ({})\n",
                     fmt::join(tried, ", "));
}

}  // namespace

Result<std::string> Explain(const PlanReport& report) {
  DT_ASSIGN_OR_RETURN(const std::string cheaper, ExplainCheaper(report));
  return ExplainLink(report) + ExplainRankIn(report) + ExplainRankOut(report) +
         ExplainNode(report, /*in=*/true) + ExplainNode(report, /*in=*/false) + cheaper;
}

}  // namespace dynatrain::apps
