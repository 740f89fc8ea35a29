// Trainer: one rank's part of training a LLaMA-style decoder in one layout.
//
// With fp32 state everything is fp32. With bf16 state, parameters and what dp positions exchange of
// gradients (data_parallel.h) are bf16; masters, moments and all arithmetic are fp32, and after each
// update every parameter is its master rounded to the nearest even bf16.
//
//   auto trainer = *Trainer::Make(options, data, instance);
//   StepResult r = *trainer->Step(step, ready);      // every active rank, the same step
//
// All that a step computes is independent of the layout up to the order of floating-point sums:
// weights, batch order, clipping and schedule. When only pp changes, losses are bit-identical.
#ifndef DYNATRAIN_TRAINER_TRAINER_H_
#define DYNATRAIN_TRAINER_TRAINER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/elastic/switch.h"
#include "dynatrain/trainer/data.h"
#include "dynatrain/trainer/options.h"

namespace dynatrain::trainer {

// The same on every rank, but for Gradients.
struct StepResult {
  double loss = 0;        // mean over all tokens of the global batch, before the update
  double grad_norm = 0;   // global, before clipping; replicated and tied parameters once
  double clip_scale = 1;  // what gradients were multiplied with
  double lr = 0;
  int64_t ready_sum = 0;  // of `ready` over all active ranks
  int64_t tokens = 0;     // of the global batch
};

// Sums over all active ranks of what each told.
struct Agreement {
  int64_t ready = 0;
  int64_t decided = 0;
};

// A part of the summed, unclipped gradient.
struct GradientPart {
  vps::ParameterId parameter;
  vps::Box box;
  std::vector<float> values;  // row-major in the box
};

// Collective methods are called by all active ranks in the same order, each on one thread; an error
// (a peer lost, a deadline passed) ends the use of this trainer and its groups.
class Trainer {
 public:
  // Any thread, not collective. Changes no state: makes views of instance.state and gradient
  // memory. The state's values may come later. The memory of `instance` is kept; its groups are
  // used until the trainer goes.
  static Result<std::unique_ptr<Trainer>> Make(const TrainerOptions& options,
                                               std::shared_ptr<const TextData> data,
                                               const elastic::LayoutInstance& instance);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Collective. Trains on the global batch of `step` (counted from 1). `ready` is summed along with
  // the gradient norm.
  Result<StepResult> Step(int64_t step, int ready);

  // Collective. How active ranks that wait between two steps agree; trains nothing.
  Result<Agreement> Agree(int ready, int decided);

  // After Step: the ids of the samples that this rank's dp position read in it, in their order in
  // the global batch. Ranks of one dp position tell the same.
  const std::vector<int64_t>& SamplesOfLastStep() const;

  // Collective. Mean loss over one fixed batch: the first global_batch samples of the file.
  Result<double> EvalLoss();

  // Collective. The logits of that batch: on the last stage [this dp position's sequences, seq,
  // this tp position's rows of the vocabulary], row-major; elsewhere empty.
  Result<std::vector<float>> EvalLogits();

  // After Step: what this rank summed of the gradients. Over all ranks, every element is told.
  std::vector<GradientPart> Gradients() const;

 private:
  class Parts;
  explicit Trainer(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_TRAINER_H_
