#include "dynatrain/apps/plan_request.h"

#include <algorithm>
#include <cstdio>

#include "dynatrain/apps/flags.h"
#include "dynatrain/base/text.h"
#include "dynatrain/models/catalog.h"

namespace dynatrain::apps {
namespace {

// Each rank's part takes about a millisecond or more, and all are planned.
constexpr int32_t kMostRanks = 16384;
constexpr int32_t kRanksToWaitFor = 4096;  // so many are told to take a while

}  // namespace

void AddPlanInputs(CLI::App& app, PlanInputs* inputs) {
  app.add_option("--model", inputs->model,
                 "a preset (llama2-70b, ...) or a Hugging Face config.json")
      ->required();
  app.add_option("--from", inputs->from, "the layout now, such as tp=8,pp=4,dp=4,zero=1")
      ->required();
  app.add_option("--to", inputs->to, "the layout to change to")->required();
  app.add_option("--topology", inputs->topology, "a800x16, h100x16, local, or a JSON file")
      ->capture_default_str();
  AddChoice(app, "--roles", inputs->roles, {"identity", "free"},
            "identity, or free: choose which rank takes which part, and which ranks stay")
      ->capture_default_str();
  AddChoice(app, "--dtype", inputs->dtype, {"bf16", "fp32"},
            "of parameters: bf16 (with fp32 masters) or fp32")
      ->capture_default_str();
}

Result<std::vector<vps::KindSpec>> KindsOf(const std::string& dtype) {
  if (dtype == "bf16") return vps::Bf16AdamKinds();
  if (dtype == "fp32") return vps::Fp32AdamKinds();
  return InvalidArgument("--dtype {}: bf16 or fp32", dtype);
}

Result<vps::Layout> PlannedLayout(const std::string& flag, const std::string& spec,
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
  for (const RankId rank : layout->Ranks()) {
    if (rank < kMostRanks) continue;
    return InvalidArgument("{}: rank {}; plans are made of ranks 0 to {}", context, rank,
                           kMostRanks - 1);
  }
  DT_RETURN_IF_ERROR(models::CheckGeometry(model, *layout).Within(context));
  return layout;
}

bool HasMasters(const vps::StateCatalog& catalog) {
  return std::ranges::any_of(catalog.tensors(), [](const vps::StateTensor& tensor) {
    return tensor.kind == vps::Kind::kMaster;
  });
}

Result<planner::PlanRequest> MakePlanRequest(const PlanInputs& inputs) {
  planner::PlanRequest request;
  const Result<models::ModelConfig> loaded = models::LoadModel(inputs.model);
  if (!loaded.ok()) return loaded.status().Within("--model");
  const models::ModelConfig& model = *loaded;
  DT_ASSIGN_OR_RETURN(std::vector<vps::KindSpec> kinds, KindsOf(inputs.dtype));
  DT_ASSIGN_OR_RETURN(request.catalog, models::MakeCatalog(model, std::move(kinds)));
  Result<planner::Topology> topology = planner::LoadTopology(inputs.topology);
  if (!topology.ok()) return topology.status().Within("--topology");
  request.topology = *std::move(topology);
  DT_ASSIGN_OR_RETURN(request.roles, planner::ParseRolePolicy(inputs.roles));
  const std::optional<int32_t> there = request.topology.num_ranks();
  DT_ASSIGN_OR_RETURN(request.from, PlannedLayout("--from", inputs.from, model, there));
  DT_ASSIGN_OR_RETURN(request.to, PlannedLayout("--to", inputs.to, model, there));
  const int32_t ranks = std::max(request.from.world_size(), request.to.world_size());
  if (ranks >= kRanksToWaitFor)
    std::fprintf(stderr, "dynatrain: planning %d ranks, which takes a while\n", ranks);
  return request;
}

}  // namespace dynatrain::apps
