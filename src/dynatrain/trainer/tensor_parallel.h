// Tensor parallelism (Shoeybi et al. 2019): where activations cross tensor-parallel positions, and
// the two layers that are cut over the vocabulary. Cuts may be uneven: a position holds rows [lo,
// hi) of the vocabulary.
#ifndef DYNATRAIN_TRAINER_TENSOR_PARALLEL_H_
#define DYNATRAIN_TRAINER_TENSOR_PARALLEL_H_

#include <ATen/core/Tensor.h>

#include "dynatrain/trainer/comm.h"

namespace dynatrain::trainer {

// In front of a layer cut over its outputs: identity forward, sum of gradients backward.
at::Tensor CopyToPositions(const at::Tensor& x, const Comm& tp);

// Behind a layer cut over its inputs: sum of partial results forward, identity backward. Overwrites
// `x`.
at::Tensor SumOverPositions(const at::Tensor& x, const Comm& tp);

// ids [T] int64 of the whole vocabulary, weight [hi - lo, H] -> embeddings [T, H] on every
// position.
at::Tensor VocabParallelEmbedding(const at::Tensor& ids, const at::Tensor& weight, int64_t lo,
                                  const Comm& tp);

// Sum over tokens of -log softmax(logits)[target], as a float64 scalar that is the same on every
// position. logits [T, hi - lo] of this position, overwritten; targets [T] int64 of the whole
// vocabulary. One exchange of three numbers per token and position.
at::Tensor VocabParallelCrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                                     int64_t lo, const Comm& tp);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_TENSOR_PARALLEL_H_
