// AdamW (Loshchilov, Hutter 2019) over flat memory, its schedule, and what of a bucket it touches.
#ifndef DYNATRAIN_TRAINER_OPTIMIZER_H_
#define DYNATRAIN_TRAINER_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "dynatrain/vps/shard_map.h"

namespace dynatrain::trainer {

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

struct Schedule {
  double lr = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup = 0;  // steps
  int64_t steps = 1;   // after which lr is min_lr
};

// Of step 1, 2, ...: lr * step / warmup while warming up, then half a cosine from lr down to min_lr
// at `steps`.
double LearningRate(const Schedule& schedule, int64_t step);

// The numbers of one step, as the kernel needs them.
struct AdamCoefficients {
  float gradient_scale;  // of clipping
  float keep;            // 1 - lr * weight_decay, 1 without decay
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float step_size;       // lr / (1 - beta1^step)
  float inv_sqrt_bias2;  // (1 - beta2^step)^-1/2
  float eps;
};
AdamCoefficients MakeAdamCoefficients(const AdamOptions& options, double lr, int64_t step,
                                      double gradient_scale, bool decay);

// Updates `n` elements. An element's bits depend on its own four numbers and the coefficients
// alone: not on alignment, offset, length or neighbours.
void AdamW(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t n,
           const AdamCoefficients& coefficients);

// to[i] = the nearest even bf16 of from[i].
void RoundToBf16(const float* from, int64_t n, uint16_t* to);

// Sum of x^2 in float64; the bits depend on the elements and their order, not on alignment.
double SumOfSquares(const float* x, int64_t n);

// min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 if max_norm <= 0.
double ClipScale(double norm, double max_norm);

// Elements [begin, end) of a bucket that belong to one parameter.
struct ParameterRange {
  vps::ParameterId parameter;
  int64_t begin;
  int64_t end;
  bool decay;    // the parameter's own, whatever its place in the bucket
  bool updated;  // it has moments; a parameter without stays as it is
  friend bool operator==(const ParameterRange&, const ParameterRange&) = default;
};

// The parameters that meet elements [begin, end) of a bucket, clipped to them; nothing of the
// padding.
std::vector<ParameterRange> RangesOf(const vps::StateCatalog& catalog, const vps::Bucket& bucket,
                                     int64_t begin, int64_t end);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_OPTIMIZER_H_
