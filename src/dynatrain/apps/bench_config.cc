#include "dynatrain/apps/bench_config.h"

#include "dynatrain/apps/plan_request.h"
#include "dynatrain/base/json.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/models/config.h"
#include "dynatrain/models/scale.h"

namespace dynatrain::apps {
namespace {

constexpr int32_t kMostRepeats = 1000;

Status CheckNumbers(const BenchConfig& config) {
  if (config.repeat < 1 || config.repeat > kMostRepeats) {
    return InvalidArgument("--repeat {}: give a number of 1 to {}", config.repeat, kMostRepeats);
  }
  if (config.state_bytes < 1)
    return InvalidArgument("--state {}: give a number of bytes", config.state_bytes);
  if (config.transport != "gloo" && config.transport != "local") {
    return InvalidArgument("--transport {}: gloo (processes) or local (threads of one process)",
                           config.transport);
  }
  return Status::Ok();
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BenchConfig, model, dtype, state_bytes, from, to, num_ranks,
                                   transport, mode, verify, budget, phases, granule_bytes, repeat,
                                   topology, interface, namespaces)

std::string BenchConfig::ToJson() const { return DumpJson(*this); }

Result<BenchConfig> BenchConfig::FromJson(const std::string& text) {
  DT_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text));
  try {
    return json.get<BenchConfig>();
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument("bench configuration: {}", error.what());
  }
}

Result<BenchSetup> BenchSetup::Make(const BenchConfig& config) {
  DT_RETURN_IF_ERROR(CheckNumbers(config));
  BenchSetup setup;
  DT_ASSIGN_OR_RETURN(const std::vector<vps::KindSpec> kinds, KindsOf(config.dtype));
  DT_ASSIGN_OR_RETURN(const models::ModelConfig whole, models::LoadModel(config.model));
  DT_ASSIGN_OR_RETURN(const models::ModelConfig model,
                      models::ScaledToFit(whole, kinds, config.state_bytes));
  DT_ASSIGN_OR_RETURN(setup.request.catalog, models::MakeCatalog(model, kinds));
  DT_ASSIGN_OR_RETURN(setup.request.topology, planner::LoadTopology(config.topology));
  DT_ASSIGN_OR_RETURN(setup.request.from,
                      PlannedLayout("--from", config.from, model, config.num_ranks));
  DT_ASSIGN_OR_RETURN(setup.request.to, PlannedLayout("--to", config.to, model, config.num_ranks));
  DT_ASSIGN_OR_RETURN(setup.compile.mode, engine::ParseMode(config.mode));
  DT_ASSIGN_OR_RETURN(setup.verify, engine::ParseVerify(config.verify));
  setup.compile.phases = config.phases;
  setup.compile.granule_bytes = config.granule_bytes;
  return setup;
}

}  // namespace dynatrain::apps
