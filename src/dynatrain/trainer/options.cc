#include "dynatrain/trainer/options.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dynatrain/models/catalog.h"

namespace dynatrain::trainer {

Status CheckModel(const models::ModelConfig& model) {
  if (model.family != models::ModelConfig::Family::kLlama) {
    return InvalidArgument("model {}: the trainer has LLaMA-style decoders only", model.name);
  }
  if (model.qkv_bias || model.out_bias || model.mlp_bias) {
    return InvalidArgument("model {}: the trainer has no biases", model.name);
  }
  if (!model.rope_scaling.empty()) {
    return InvalidArgument("model {}: the trainer has no rope_scaling, the model has \"{}\"",
                           model.name, model.rope_scaling);
  }
  if (model.head_dim % 2 != 0) {
    return InvalidArgument("model {}: rotary positions need an even head_dim, not {}", model.name,
                           model.head_dim);
  }
  return {};
}

Status CheckOptions(const TrainerOptions& o) {
  DT_RETURN_IF_ERROR(CheckModel(o.model));
  if (o.seq < 1 || o.seq > o.model.max_positions) {
    return InvalidArgument("seq {}: model {} has positions for 1 to {}", o.seq, o.model.name,
                           o.model.max_positions);
  }
  if (o.micro_batch < 1 || o.global_batch < 1 || o.global_batch % o.micro_batch != 0) {
    return InvalidArgument("global batch {} is no multiple of micro-batch {}", o.global_batch,
                           o.micro_batch);
  }
  if (o.schedule.warmup < 0 || o.schedule.steps < 1 || o.schedule.lr < 0 || o.schedule.min_lr < 0) {
    return InvalidArgument(
        "schedule: lr {}, min_lr {}, warmup {} and steps {} must not be negative, steps at least 1",
        o.schedule.lr, o.schedule.min_lr, o.schedule.warmup, o.schedule.steps);
  }
  return {};
}

Status CheckLayout(const TrainerOptions& options, const vps::Layout& layout) {
  DT_RETURN_IF_ERROR(models::CheckLayout(options.model, layout));
  const int64_t micro_batches = options.micro_batches();
  if (micro_batches % layout.dp == 0) return {};
  std::vector<int64_t> fits;
  for (int64_t dp = 1; dp <= micro_batches; ++dp) {
    if (micro_batches % dp == 0) fits.push_back(dp);
  }
  return InvalidArgument(
      "dp={}: global batch {} in micro-batches of {} is {} micro-batches, {:.3g} for each dp "
      "position; "
      "right is dp of {}, or another micro-batch",
      layout.dp, options.global_batch, options.micro_batch, micro_batches,
      static_cast<double>(micro_batches) / layout.dp, fmt::join(fits, ", "));
}

}  // namespace dynatrain::trainer
