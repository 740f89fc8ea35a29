// What a training run is, whatever its layout, and whether a layout can carry it.
#ifndef DYNATRAIN_TRAINER_OPTIONS_H_
#define DYNATRAIN_TRAINER_OPTIONS_H_

#include <cstdint>
#include <string>

#include "dynatrain/base/status.h"
#include "dynatrain/models/config.h"
#include "dynatrain/trainer/optimizer.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::trainer {

struct TrainerOptions {
  models::ModelConfig model;
  std::string data_file;
  int64_t seq = 64;
  int64_t global_batch = 12;  // sequences per step; never changes by itself
  int64_t micro_batch = 1;    // sequences per forward
  Schedule schedule;
  AdamOptions adam;
  double clip = 1.0;  // largest global gradient norm; 0: no clipping
  uint64_t seed = 1;

  // Of all dp positions, per step.
  int64_t micro_batches() const { return global_batch / micro_batch; }
};

// Models that the trainer has no code for, by name.
Status CheckModel(const models::ModelConfig& model);

// Values that no layout could train with, by name.
Status CheckOptions(const TrainerOptions& options);

// Whether the model fits (models::CheckLayout) and dp positions get equal numbers of micro-batches;
// names the numbers and what would be right. Pure.
Status CheckLayout(const TrainerOptions& options, const vps::Layout& layout);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_OPTIONS_H_
