// JobSetup: a JobConfig made real — model, catalog, trainer options — and the checks on it, the
// same in the launcher, which refuses bad input before anything starts, and in every rank.
#ifndef DYNATRAIN_APPS_JOB_SETUP_H_
#define DYNATRAIN_APPS_JOB_SETUP_H_

#include <memory>
#include <string>

#include "dynatrain/apps/job_config.h"
#include "dynatrain/engine/state.h"
#include "dynatrain/models/config.h"
#include "dynatrain/trainer/options.h"
#include "dynatrain/vps/catalog.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::apps {

struct JobSetup {
  int32_t num_ranks = 1;
  models::ModelConfig model;
  std::shared_ptr<const vps::StateCatalog> catalog;  // of the job's dtype
  trainer::TrainerOptions trainer;

  // Reads the model's configuration and checks numbers and data file (kInvalidArgument or
  // kNotFound, naming the value).
  static Result<JobSetup> Make(const JobConfig& config);

  // Parses a SPEC and checks that the layout fits ranks, layers, heads, ffn, vocabulary and batch.
  Result<vps::Layout> CheckedLayout(const std::string& spec) const;
};

// "zero" or "nan".
Result<engine::Fill> ParseFill(std::string_view name);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_JOB_SETUP_H_
