// TrainerHost: what the switch protocol needs to know about a training loop of ours.
#ifndef DYNATRAIN_TRAINER_TRAINER_HOST_H_
#define DYNATRAIN_TRAINER_TRAINER_HOST_H_

#include <memory>
#include <string>

#include "dynatrain/base/status.h"
#include "dynatrain/elastic/switch.h"
#include "dynatrain/trainer/job_state.h"
#include "dynatrain/trainer/options.h"
#include "dynatrain/trainer/trainer.h"

namespace dynatrain::trainer {

// Prepare and CheckLayout on any thread; the rest on the training thread.
class TrainerHost final : public elastic::Host {
 public:
  // Checks the options and opens the data file.
  static Result<std::unique_ptr<TrainerHost>> Make(const TrainerOptions& options);

  Status CheckLayout(const vps::Layout& layout) override;
  // The instance's trainer; holds references to the instance's groups and memory, not to the
  // instance.
  Result<std::shared_ptr<void>> Prepare(const elastic::LayoutInstance& instance) override;
  std::string JobState() override { return job_state_.ToBytes(); }

  // The trainer that Prepare made. Precondition: instance.host is what Prepare returned.
  static Trainer& TrainerOf(const elastic::LayoutInstance& instance) {
    return *static_cast<Trainer*>(instance.host.get());
  }

  // After step `step` has ended.
  void Finished(int64_t step);
  // Goes on from another rank's job state. Refuses one of another seed or batch size: its data
  // position would be lost.
  Status Restore(const std::string& bytes);
  const trainer::JobState& state() const { return job_state_; }
  const TrainerOptions& options() const { return options_; }
  const std::shared_ptr<const TextData>& data() const { return data_; }

 private:
  TrainerHost(const TrainerOptions& options, std::shared_ptr<const TextData> data);

  const TrainerOptions options_;
  const std::shared_ptr<const TextData> data_;
  trainer::JobState job_state_;
};

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_TRAINER_HOST_H_
