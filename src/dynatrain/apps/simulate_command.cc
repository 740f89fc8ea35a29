#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/flags.h"
#include "dynatrain/apps/format.h"
#include "dynatrain/apps/output.h"
#include "dynatrain/apps/plan_request.h"
#include "dynatrain/engine/plan_by_cost.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;

constexpr size_t kLinksShown = 5;
constexpr size_t kEntriesShown = 12;

struct SimulateFlags {
  PlanInputs inputs;
  std::string mode = "keep";
  std::optional<ByteCount> budget;
  std::string verify = "moved";
  std::string relays = "auto";
  bool timeline = false;
  std::string json;
};

struct Simulated : engine::SimulatedPlan {
  double bound_seconds = 0;  // no plan with these roles can be faster
};

void AddFlags(CLI::App& app, SimulateFlags* flags) {
  AddPlanInputs(app, &flags->inputs);
  AddChoice(app, "--mode", flags->mode, {"keep", "stream"}, "keep or stream")
      ->capture_default_str();
  AddBytes(app, "--budget", flags->budget,
           "most extra memory of a rank, such as 2GiB (default: no limit)");
  AddChoice(app, "--verify", flags->verify, {"off", "moved", "full"}, "off, moved or full")
      ->capture_default_str();
  AddChoice(app, "--relays", flags->relays, {"auto", "on", "off"},
            "on: pieces enter a node once and go on inside it; off; auto: whatever is faster")
      ->capture_default_str();
  app.add_flag("--timeline", flags->timeline,
               "tell what each rank did when: the slowest rank's longest entries, all in JSON");
  app.add_flag("--json{-}", flags->json, kJsonHelp);
}

std::string_view NameOf(engine::TimelineEntry::Kind kind) {
  using Kind = engine::TimelineEntry::Kind;
  switch (kind) {
    case Kind::kPack:
      return "pack";
    case Kind::kUnpack:
      return "unpack";
    case Kind::kCopy:
      return "copy";
    case Kind::kCheck:
      return "check";
    case Kind::kMessage:
      return "message";
  }
  return "message";
}

Result<Simulated> RunSimulation(const SimulateFlags& flags) {
  Simulated result;
  DT_ASSIGN_OR_RETURN(const planner::PlanRequest request, MakePlanRequest(flags.inputs));
  engine::CompileOptions compile;
  DT_ASSIGN_OR_RETURN(compile.mode, engine::ParseMode(flags.mode));
  DT_ASSIGN_OR_RETURN(const engine::Verify verify, engine::ParseVerify(flags.verify));
  DT_ASSIGN_OR_RETURN(const engine::Relays relays, engine::ParseRelays(flags.relays));
  engine::SimulationOptions options = engine::SimulationOptionsOf(request.topology, verify);
  options.timeline = flags.timeline;
  DT_ASSIGN_OR_RETURN(static_cast<engine::SimulatedPlan&>(result),
                      engine::PlanByCost(request, relays, compile, flags.budget, options));
  result.bound_seconds = result.plan->bound.Seconds(request.topology);
  return result;
}

double AchievedOverBound(const Simulated& result) {
  return result.bound_seconds > 0 ? result.report.seconds / result.bound_seconds : 0;
}

RankId SlowestRank(const Simulated& result) {
  const auto& seconds = result.report.rank_seconds;
  const auto at = std::ranges::max_element(seconds) - seconds.begin();
  return result.programs.programs[static_cast<size_t>(at)].rank;
}

json AsJson(const SimulateFlags& flags, const Simulated& result) {
  const engine::SimulationReport& report = result.report;
  json links = json::array();
  for (const engine::LinkUse& link : report.links) {
    links.push_back({{"name", link.name},
                     {"bytes", link.bytes},
                     {"busy_seconds", link.busy_s},
                     {"share", report.seconds > 0 ? link.busy_s / report.seconds : 0}});
  }
  json timeline;  // null unless asked for
  if (flags.timeline) timeline = json::array();
  for (const engine::TimelineEntry& entry : report.timeline) {
    timeline.push_back({{"what", NameOf(entry.kind)},
                        {"rank", entry.rank},
                        {"peer", entry.peer},
                        {"phase", entry.phase},
                        {"bytes", entry.bytes},
                        {"begin", entry.begin_s},
                        {"end", entry.end_s}});
  }
  return {{"model", flags.inputs.model},
          {"from", flags.inputs.from},
          {"to", flags.inputs.to},
          {"topology", flags.inputs.topology},
          {"roles", flags.inputs.roles},
          {"mode", flags.mode},
          {"verify", flags.verify},
          {"relays", result.relays},
          {"phases", result.programs.granularity.phases},
          {"messages", result.programs.messages},
          {"moved_bytes", result.plan->totals.moved_bytes},
          {"wire_bytes", report.wire_bytes},
          {"cross_node_bytes", report.cross_node_bytes},
          {"peak_extra_bytes", result.programs.peak_extra_bytes},
          {"seconds", report.seconds},
          {"bound_seconds", result.bound_seconds},
          {"fullest_link_seconds", report.bound_seconds()},
          {"achieved_over_bound", AchievedOverBound(result)},
          {"slowest_rank", SlowestRank(result)},
          {"rank_seconds", report.rank_seconds},
          {"links", std::move(links)},
          {"timeline", std::move(timeline)}};
}

std::string TimelineText(const Simulated& result) {
  const RankId slowest = SlowestRank(result);
  std::vector<engine::TimelineEntry> entries;
  for (const engine::TimelineEntry& entry : result.report.timeline) {
    if (entry.rank == slowest) entries.push_back(entry);
  }
  std::ranges::stable_sort(
      entries, {}, [](const engine::TimelineEntry& entry) { return entry.begin_s - entry.end_s; });
  if (entries.size() > kEntriesShown) entries.resize(kEntriesShown);
  std::ranges::stable_sort(entries, {}, &engine::TimelineEntry::begin_s);
  std::string text =
      fmt::format("rank {}, its {} longest entries by begin:\n", slowest, entries.size());
  for (const engine::TimelineEntry& entry : entries) {
    const std::string what = entry.kind == engine::TimelineEntry::Kind::kMessage
                                 ? fmt::format("message from rank {}", entry.peer)
                                 : std::string(NameOf(entry.kind));
    text += fmt::format("  {:>9} to {:>9}  phase {:<4} {:<26} {}\n", FormatSeconds(entry.begin_s),
                        FormatSeconds(entry.end_s), entry.phase, what, FormatBytes(entry.bytes));
  }
  return text;
}

std::string AsText(const SimulateFlags& flags, const Simulated& result) {
  const engine::SimulationReport& report = result.report;
  std::string text =
      fmt::format("{} {} -> {} on {}: {} ranks, {} moved, {} on the wire ({} between nodes)\n",
                  flags.inputs.model, flags.inputs.from, flags.inputs.to, flags.inputs.topology,
                  result.programs.programs.size(), FormatBytes(result.plan->totals.moved_bytes),
                  FormatBytes(report.wire_bytes), FormatBytes(report.cross_node_bytes));
  text += fmt::format(
      "time {}, {:.2f} of the bound {}; {} messages in {} phases{}, {} extra "
      "memory\n",
      FormatSeconds(report.seconds), AchievedOverBound(result), FormatSeconds(result.bound_seconds),
      result.programs.messages, result.programs.granularity.phases,
      result.relays ? ", relayed inside nodes" : "", FormatBytes(result.programs.peak_extra_bytes));
  text += "fullest links:\n";
  for (size_t i = 0; i < std::min(kLinksShown, report.links.size()); ++i) {
    const engine::LinkUse& link = report.links[i];
    text += fmt::format("  {:<14} {:>10}  busy {:>9}  {:.0f} % of the time\n", link.name,
                        FormatBytes(link.bytes), FormatSeconds(link.busy_s),
                        100 * link.busy_s / report.seconds);
  }
  return flags.timeline ? text + TimelineText(result) : text;
}

Status Simulate(const SimulateFlags& flags) {
  DT_ASSIGN_OR_RETURN(const Simulated result, RunSimulation(flags));
  if (flags.json != "-") std::fputs(AsText(flags, result).c_str(), stdout);
  return ShowJson(flags.json, AsJson(flags, result));
}

}  // namespace

void AddSimulateCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "simulate", "run a change of layout in virtual time over the links of a topology");
  auto flags = std::make_shared<SimulateFlags>();
  AddFlags(*command, flags.get());
  command->callback([flags, exit_code] { *exit_code = ExitCode("simulate", Simulate(*flags)); });
}

}  // namespace dynatrain::apps
