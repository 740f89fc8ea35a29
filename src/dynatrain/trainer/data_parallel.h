// Data parallelism and ZeRO-1 (Rajbhandari et al. 2020) on flat buckets.
//
// A bucket's gradient is reduce-scattered: each dp position sums its slice over positions 0, 1, 2,
// ... in this order, so that an element's bits depend neither on its place in a bucket nor on
// `zero`. Then
//   zero = 0: the summed slices are gathered, and every position updates the whole bucket;
//   zero = 1: every position updates its slice, and the new parameters are gathered.
// With bf16 parameters each position rounds its own gradient, accumulated in fp32 over its
// micro-batches, to bf16 once; that is what travels, and the sum over positions is in fp32.
// Gloo's own reduce-scatter is an all-reduce that drops most of its result: twice the bytes.
#ifndef DYNATRAIN_TRAINER_DATA_PARALLEL_H_
#define DYNATRAIN_TRAINER_DATA_PARALLEL_H_

#include <vector>

#include "dynatrain/trainer/comm.h"
#include "dynatrain/trainer/parameters.h"

namespace dynatrain::trainer {

// Elements [begin, end) of a bucket's gradient that this dp position sums.
vps::AxisRange SliceOf(const StageBucket& bucket, const Comm& dp);

// Sums the gradients of tied parameters over their homes. Before ReduceGradients: then all copies
// get the same bits.
void SumTiedGradients(const StageParameters& parameters, const Comm& embedding);

// Afterwards the slice of each bucket's gradient is summed over dp, the rest of it is garbage.
void ReduceGradients(const std::vector<StageBucket>& buckets, const Comm& dp);

// Makes the whole of each gradient (zero = 0), or of each parameter bucket (zero = 1), out of the
// slices.
void GatherGradients(const std::vector<StageBucket>& buckets, const Comm& dp);
void GatherParameters(const std::vector<StageBucket>& buckets, const Comm& dp);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_DATA_PARALLEL_H_
