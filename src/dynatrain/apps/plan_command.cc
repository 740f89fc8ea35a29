#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>

#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/flags.h"
#include "dynatrain/apps/plan_report.h"
#include "dynatrain/base/clock.h"
#include "dynatrain/base/text.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/models/config.h"

namespace dynatrain::apps {
namespace {

// Each rank's part takes about a millisecond or more, and this command plans them all.
constexpr int32_t kMostRanks = 16384;
constexpr int32_t kRanksToWaitFor = 4096;  // so many are told to take a while

struct PlanFlags {
  std::string model;
  std::string from;
  std::string to;
  std::string topology = "local";
  std::string roles = "identity";
  std::string dtype = "bf16";
  std::string mode = "keep";
  std::optional<ByteCount> budget;
  bool derive = false;
  bool explain = false;
  bool no_programs = false;
  std::string report;
  std::string json;
};

void AddFlags(CLI::App& app, PlanFlags* flags) {
  app.add_option("--model", flags->model,
                 "a preset (llama2-70b, ...) or a Hugging Face config.json")
      ->required();
  app.add_option("--from", flags->from, "the layout now, such as tp=8,pp=4,dp=4,zero=1")
      ->required();
  app.add_option("--to", flags->to, "the layout to change to")->required();
  app.add_option("--topology", flags->topology, "a800x16, h100x16, local, or a JSON file")
      ->capture_default_str();
  AddChoice(app, "--roles", flags->roles, {"identity", "free"},
            "identity, or free: choose which rank takes which part, and which ranks stay")
      ->capture_default_str();
  AddChoice(app, "--dtype", flags->dtype, {"bf16", "fp32"},
            "of parameters: bf16 (with fp32 masters) or fp32")
      ->capture_default_str();
  AddChoice(app, "--mode", flags->mode, {"keep", "stream"},
            "keep: old state stays until the switch is decided; stream: it leaves phase by phase")
      ->capture_default_str();
  AddNumber(app, "--budget", flags->budget,
            Range<int64_t>{0, std::numeric_limits<int64_t>::max(), "bytes"},
            "bytes above max(old, new) state that a rank may need; none: as many as it takes");
  app.add_flag("--derive", flags->derive,
               "recompute half-precision parameters from masters that a rank has anyway");
  app.add_flag("--no-programs", flags->no_programs,
               "leave out what the programs of all ranks would have to be compiled for");
  app.add_flag("--explain", flags->explain,
               "tell what is fullest and why, and what would be cheaper");
  app.add_option("--report", flags->report,
                 "write a page with a heat map of the traffic to this file");
  app.add_flag("--json{-}", flags->json, "JSON to standard output, or to a file with --json=FILE");
}

Result<std::vector<vps::KindSpec>> KindsOf(const std::string& dtype) {
  if (dtype == "bf16") return vps::Bf16AdamKinds();
  if (dtype == "fp32") return vps::Fp32AdamKinds();
  return InvalidArgument("--dtype {}: bf16 or fp32", dtype);
}

Result<vps::Layout> CheckedLayout(const std::string& flag, const std::string& spec,
                                  const models::ModelConfig& model,
                                  std::optional<int32_t> num_ranks) {
  const std::string context = fmt::format("{} {}", flag, Shortened(spec));
  Result<vps::Layout> layout = vps::ParseLayout(spec, num_ranks);
  if (!layout.ok()) return layout.status().Within(context);
  DT_RETURN_IF_ERROR(layout->Validate(model.layers, num_ranks).Within(context));
  if (layout->world_size() > kMostRanks) {
    return InvalidArgument("{}: {} ranks; a plan of every rank is made for at most {}", context,
                           layout->world_size(), kMostRanks);
  }
  DT_RETURN_IF_ERROR(models::CheckGeometry(model, *layout).Within(context));
  return layout;
}

Result<planner::PlanRequest> MakeRequest(const PlanFlags& flags) {
  planner::PlanRequest request;
  const Result<models::ModelConfig> loaded = models::LoadModel(flags.model);
  if (!loaded.ok()) return loaded.status().Within("--model");
  const models::ModelConfig& model = *loaded;
  DT_ASSIGN_OR_RETURN(std::vector<vps::KindSpec> kinds, KindsOf(flags.dtype));
  DT_ASSIGN_OR_RETURN(request.catalog, models::MakeCatalog(model, std::move(kinds)));
  Result<planner::Topology> topology = planner::LoadTopology(flags.topology);
  if (!topology.ok()) return topology.status().Within("--topology");
  request.topology = *std::move(topology);
  DT_ASSIGN_OR_RETURN(request.roles, planner::ParseRolePolicy(flags.roles));
  std::optional<int32_t> ranks = request.topology.num_ranks();
  DT_ASSIGN_OR_RETURN(request.from, CheckedLayout("--from", flags.from, model, ranks));
  DT_ASSIGN_OR_RETURN(request.to, CheckedLayout("--to", flags.to, model, ranks));
  request.options.derive = flags.derive;
  for (const vps::Layout* layout : {&request.from, &request.to}) {
    const int32_t first = request.topology.NodeOf(request.from.RankAt(0));
    for (const RankId rank : layout->Ranks()) {
      if (request.topology.NodeOf(rank) != first) request.options.relays = true;
    }
  }
  return request;
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Unavailable("{}: cannot write it", path);
  return Status::Ok();
}

Status RunPlan(const PlanFlags& flags) {
  PlanReport report;
  report.model = flags.model;
  DT_ASSIGN_OR_RETURN(report.mode, engine::ParseMode(flags.mode));
  DT_ASSIGN_OR_RETURN(report.request, MakeRequest(flags));
  const int32_t ranks = std::max(report.request.from.world_size(), report.request.to.world_size());
  if (ranks >= kRanksToWaitFor) {
    std::fprintf(stderr, "dynatrain plan: planning %d ranks, which takes a while\n", ranks);
  }
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
  if (flags.json.empty()) return Status::Ok();
  const std::string json = DumpJson(ReportAsJson(report), /*indent=*/2) + "\n";
  if (flags.json != "-") return WriteFile(flags.json, json);
  std::fputs(json.c_str(), stdout);
  return Status::Ok();
}

}  // namespace

void AddPlanCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("plan", "tell what a change of layout would move");
  auto flags = std::make_shared<PlanFlags>();
  AddFlags(*command, flags.get());
  command->callback([flags, exit_code] {
    const Status status = RunPlan(*flags);
    if (status.ok()) return;
    std::fprintf(stderr, "dynatrain plan: %s\n", status.ToString().c_str());
    *exit_code = 1;
  });
}

}  // namespace dynatrain::apps
