// Pipeline parallelism: one-forward-one-backward over the stages of a pipeline line (Narayanan et
// al. 2021).
//
// Stage s of p runs min(p - 1 - s, M) forwards ahead, then one forward and one backward in turn,
// then the backwards left, so that it holds activations of at most p - s micro-batches. Receives
// are posted one micro-batch ahead and sends are waited for only after as many more as the pipeline
// is deep: no wait of one stage depends on a later wait of its neighbour.
#ifndef DYNATRAIN_TRAINER_PIPELINE_H_
#define DYNATRAIN_TRAINER_PIPELINE_H_

#include <vector>

#include <ATen/core/Tensor.h>

#include "dynatrain/trainer/comm.h"
#include "dynatrain/trainer/model.h"

namespace dynatrain::trainer {

// Forward and backward of all micro-batches; gradients are added to the leaves' .grad, that of each
// token's loss being `loss_scale`. Returns each micro-batch's sum of token losses on the last
// stage, elsewhere nothing.
std::vector<double> TrainMicroBatches(const StageModel& model, const Comm& pp,
                                      const std::vector<MicroBatch>& batches, double loss_scale);

// Forward only. `logits`, if given, receives [T, V] of each micro-batch on the last stage.
std::vector<double> EvalMicroBatches(const StageModel& model, const Comm& pp,
                                     const std::vector<MicroBatch>& batches,
                                     std::vector<at::Tensor>* logits = nullptr);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_PIPELINE_H_
