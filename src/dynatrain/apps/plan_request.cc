#include "dynatrain/apps/plan_request.h"

#include "dynatrain/models/catalog.h"

namespace dynatrain::apps {

Result<std::vector<vps::KindSpec>> KindsOf(const std::string& dtype) {
  if (dtype == "bf16") return vps::Bf16AdamKinds();
  if (dtype == "fp32") return vps::Fp32AdamKinds();
  return InvalidArgument("--dtype {}: bf16 or fp32", dtype);
}

Result<vps::Layout> PlannedLayout(const std::string& flag, const std::string& spec,
                                  const models::ModelConfig& model,
                                  std::optional<int32_t> num_ranks) {
  const std::string context = fmt::format("{} {}", flag, spec);
  Result<vps::Layout> layout = vps::ParseLayout(spec, num_ranks);
  if (!layout.ok()) return layout.status().Within(context);
  DT_RETURN_IF_ERROR(layout->Validate(model.layers, num_ranks).Within(context));
  DT_RETURN_IF_ERROR(models::CheckGeometry(model, *layout).Within(context));
  return layout;
}

Result<planner::PlanRequest> MakePlanRequest(const PlanInputs& inputs) {
  planner::PlanRequest request;
  DT_ASSIGN_OR_RETURN(const models::ModelConfig model, models::LoadModel(inputs.model));
  DT_ASSIGN_OR_RETURN(std::vector<vps::KindSpec> kinds, KindsOf(inputs.dtype));
  DT_ASSIGN_OR_RETURN(request.catalog, models::MakeCatalog(model, std::move(kinds)));
  DT_ASSIGN_OR_RETURN(request.topology, planner::LoadTopology(inputs.topology));
  DT_ASSIGN_OR_RETURN(request.roles, planner::ParseRolePolicy(inputs.roles));
  const std::optional<int32_t> ranks = request.topology.num_ranks();
  DT_ASSIGN_OR_RETURN(request.from, PlannedLayout("--from", inputs.from, model, ranks));
  DT_ASSIGN_OR_RETURN(request.to, PlannedLayout("--to", inputs.to, model, ranks));
  return request;
}

}  // namespace dynatrain::apps
