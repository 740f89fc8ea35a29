#include "dynatrain/trainer/trainer_host.h"

namespace dynatrain::trainer {

TrainerHost::TrainerHost(const TrainerOptions& options, std::shared_ptr<const TextData> data)
    : options_(options),
      data_(std::move(data)),
      job_state_{.step = 0, .samples = 0, .seed = options.seed} {}

Result<std::unique_ptr<TrainerHost>> TrainerHost::Make(const TrainerOptions& options) {
  DT_RETURN_IF_ERROR(CheckOptions(options));
  DT_ASSIGN_OR_RETURN(
      std::shared_ptr<const TextData> data,
      TextData::Open(options.data_file, options.seq, options.global_batch, options.model.vocab));
  return std::unique_ptr<TrainerHost>(new TrainerHost(options, std::move(data)));
}

Status TrainerHost::CheckLayout(const vps::Layout& layout) {
  return trainer::CheckLayout(options_, layout);
}

Result<std::shared_ptr<void>> TrainerHost::Prepare(const elastic::LayoutInstance& instance) {
  DT_ASSIGN_OR_RETURN(std::shared_ptr<Trainer> trainer, Trainer::Make(options_, data_, instance));
  return std::shared_ptr<void>(std::move(trainer));
}

void TrainerHost::Finished(int64_t step) {
  job_state_.step = step;
  job_state_.samples = step * options_.global_batch;
}

Status TrainerHost::Restore(const std::string& bytes) {
  DT_ASSIGN_OR_RETURN(const trainer::JobState state, trainer::JobState::FromBytes(bytes));
  if (state.seed != options_.seed) {
    return FailedPrecondition(
        "the job's data order has seed {}, this process was started with seed {}", state.seed,
        options_.seed);
  }
  if (state.samples != state.step * options_.global_batch) {
    return FailedPrecondition(
        "the job used {} samples in {} steps; with a global batch of {} it would be {}",
        state.samples, state.step, options_.global_batch, state.step * options_.global_batch);
  }
  job_state_ = state;
  return {};
}

}  // namespace dynatrain::trainer
