#include "dynatrain/apps/job_setup.h"

#include "dynatrain/base/text.h"
#include "dynatrain/engine/executor.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/trainer/data.h"

namespace dynatrain::apps {
namespace {

// The learning rate rises over this share of all steps, then falls to a tenth of its peak.
constexpr int64_t kWarmupShare = 20;

// What depends on more than one flag.
Status CheckTogether(const JobConfig& config) {
  if (config.stop_after > config.steps) {
    return InvalidArgument("--stop-after {}: give a step of 1 to {}, the last", config.stop_after,
                           config.steps);
  }
  if (config.save_every > 0 && config.save.empty()) {
    return InvalidArgument("--save-every {}: give the directory with --save DIR",
                           config.save_every);
  }
  return {};
}

Result<std::vector<vps::KindSpec>> KindsOf(const JobConfig& config) {
  if (config.dtype == "bf16") return vps::Bf16AdamKinds();
  if (config.dtype != "fp32") {
    return InvalidArgument("--dtype {}: give fp32, or bf16 (with fp32 masters)", config.dtype);
  }
  if (config.derive) {
    return InvalidArgument(
        "--derive: only bf16 parameters can be computed from masters; "
        "give --dtype bf16 with it");
  }
  return vps::Fp32AdamKinds();
}

}  // namespace

Result<engine::Fill> ParseFill(std::string_view name) {
  if (name == "zero") return engine::Fill::kZero;
  if (name == "nan") return engine::Fill::kNan;
  return InvalidArgument("--fill {}: zero or nan", name);
}

Result<JobSetup> JobSetup::Make(const JobConfig& config) {
  DT_RETURN_IF_ERROR(CheckTogether(config));
  JobSetup setup;
  setup.num_ranks = config.num_ranks;
  Result<models::ModelConfig> model = models::LoadModel(config.model);
  if (!model.ok()) return model.status().Within("--model");
  setup.model = *std::move(model);
  DT_ASSIGN_OR_RETURN(std::vector<vps::KindSpec> kinds, KindsOf(config));
  DT_ASSIGN_OR_RETURN(setup.catalog, models::MakeCatalog(setup.model, std::move(kinds)));
  trainer::TrainerOptions& options = setup.trainer;
  options.model = setup.model;
  options.data_file = config.data;
  options.global_batch = config.global_batch;
  options.micro_batch = config.micro_batch;
  options.seq = config.seq;
  options.seed = config.seed;
  options.schedule = {.lr = config.lr,
                      .min_lr = config.lr / 10,
                      .warmup = config.steps / kWarmupShare,
                      .steps = config.steps};
  DT_RETURN_IF_ERROR(trainer::CheckOptions(options));
  DT_RETURN_IF_ERROR(trainer::TextData::Open(options.data_file, options.seq, options.global_batch,
                                             setup.model.vocab)
                         .status()
                         .Within("--data"));
  return setup;
}

Result<vps::Layout> JobSetup::CheckedLayout(const std::string& spec) const {
  const std::string context = fmt::format("layout {}", Shortened(spec));
  Result<vps::Layout> layout = vps::ParseLayout(spec, num_ranks);
  if (!layout.ok()) return layout.status().Within(context);
  DT_RETURN_IF_ERROR(layout->Validate(model.layers, num_ranks).Within(context));
  DT_RETURN_IF_ERROR(trainer::CheckLayout(trainer, *layout).Within(context));
  return layout;
}

}  // namespace dynatrain::apps
