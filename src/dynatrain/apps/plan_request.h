// What `plan`, `simulate` and `bench` are asked for, made a request to the planner.
#ifndef DYNATRAIN_APPS_PLAN_REQUEST_H_
#define DYNATRAIN_APPS_PLAN_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dynatrain/base/status.h"
#include "dynatrain/models/config.h"
#include "dynatrain/planner/plan.h"

namespace dynatrain::apps {

struct PlanInputs {
  std::string model;  // preset or path of a Hugging Face config.json
  std::string from;   // SPEC
  std::string to;
  std::string topology = "local";
  std::string roles = "identity";
  std::string dtype = "bf16";
};

// Their flags: --model, --from, --to, --topology, --roles, --dtype. `inputs` outlives `app`.
void AddPlanInputs(CLI::App& app, PlanInputs* inputs);

// Errors name flag and value. Tells on standard error if so many ranks are to be planned that it takes a while.
Result<planner::PlanRequest> MakePlanRequest(const PlanInputs& inputs);

// Its parts. `num_ranks`: what there is; none: no limit but that of a plan of every rank, 16384.
Result<std::vector<vps::KindSpec>> KindsOf(const std::string& dtype);
Result<vps::Layout> PlannedLayout(const std::string& flag, const std::string& spec,
                                  const models::ModelConfig& model,
                                  std::optional<int32_t> num_ranks);

// Whether parameters have fp32 masters to compute them from (planner::PlanOptions::derive).
bool HasMasters(const vps::StateCatalog& catalog);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_PLAN_REQUEST_H_
