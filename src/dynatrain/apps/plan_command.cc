#include <cstdio>
#include <memory>
#include <optional>

#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/flags.h"
#include "dynatrain/apps/output.h"
#include "dynatrain/apps/plan_report.h"
#include "dynatrain/apps/plan_request.h"
#include "dynatrain/base/clock.h"

namespace dynatrain::apps {
namespace {

struct PlanFlags {
  PlanInputs inputs;
  std::string mode = "keep";
  std::optional<ByteCount> budget;
  bool derive = false;
  bool explain = false;
  bool no_programs = false;
  std::string report;
  std::string json;
};

void AddFlags(CLI::App& app, PlanFlags* flags) {
  AddPlanInputs(app, &flags->inputs);
  AddChoice(app, "--mode", flags->mode, {"keep", "stream"},
            "keep: old state stays until the switch is decided; stream: it leaves phase by phase")
      ->capture_default_str();
  AddBytes(
      app, "--budget", flags->budget,
      "most bytes above max(old, new) state of a rank, such as 2GiB; none: as many as it takes");
  app.add_flag("--derive", flags->derive,
               "recompute half-precision parameters from masters that a rank has anyway");
  app.add_flag("--no-programs", flags->no_programs,
               "leave out what the programs of all ranks would have to be compiled for");
  app.add_flag("--explain", flags->explain,
               "tell what is fullest and why, and what would be cheaper");
  app.add_option("--report", flags->report,
                 "write a page with a heat map of the traffic to this file");
  app.add_flag("--json{-}", flags->json, kJsonHelp);
}

Result<planner::PlanRequest> MakeRequest(const PlanFlags& flags) {
  DT_ASSIGN_OR_RETURN(planner::PlanRequest request, MakePlanRequest(flags.inputs));
  if (flags.derive && !HasMasters(*request.catalog)) {
    return InvalidArgument(
        "--derive with --dtype {}: only bf16 parameters can be computed from masters; give --dtype "
        "bf16 with it",
        flags.inputs.dtype);
  }
  request.options.derive = flags.derive;
  for (const vps::Layout* layout : {&request.from, &request.to}) {
    const int32_t first = request.topology.NodeOf(request.from.RankAt(0));
    for (const RankId rank : layout->Ranks()) {
      if (request.topology.NodeOf(rank) != first) request.options.relays = true;
    }
  }
  return request;
}

Status RunPlan(const PlanFlags& flags) {
  PlanReport report;
  report.model = flags.inputs.model;
  DT_ASSIGN_OR_RETURN(report.mode, engine::ParseMode(flags.mode));
  if (flags.no_programs && flags.budget) {
    return InvalidArgument(
        "--budget {} with --no-programs: the programs are what a budget is for; give one of both",
        *flags.budget);
  }
  DT_ASSIGN_OR_RETURN(report.request, MakeRequest(flags));
  const TimePoint start = MonotonicClock().Now();
  DT_ASSIGN_OR_RETURN(report.plan, planner::MakePlan(report.request));
  report.planning_seconds = ToSeconds(MonotonicClock().Now() - start);
  if (!flags.no_programs) {
    DT_ASSIGN_OR_RETURN(report.programs,
                        FiguresOf(report.request, *report.plan, report.mode, flags.budget));
  }
  if (flags.json != "-") std::fputs(ReportAsText(report).c_str(), stdout);
  if (flags.explain) {
    DT_ASSIGN_OR_RETURN(const std::string text, Explain(report));
    std::fputs(text.c_str(), flags.json == "-" ? stderr : stdout);
  }
  if (!flags.report.empty()) DT_RETURN_IF_ERROR(WriteFile(flags.report, ReportAsHtml(report)));
  return ShowJson(flags.json, ReportAsJson(report));
}

}  // namespace

void AddPlanCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("plan", "tell what a change of layout would move");
  auto flags = std::make_shared<PlanFlags>();
  AddFlags(*command, flags.get());
  command->callback([flags, exit_code] { *exit_code = ExitCode("plan", RunPlan(*flags)); });
}

}  // namespace dynatrain::apps
