#include "dynatrain/trainer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "dynatrain/base/bf16.h"

namespace dynatrain::trainer {

double LearningRate(const Schedule& schedule, int64_t step) {
  if (step < schedule.warmup) {
    return schedule.lr * static_cast<double>(step) / static_cast<double>(schedule.warmup);
  }
  const int64_t span = std::max<int64_t>(schedule.steps - schedule.warmup, 1);
  const double done =
      std::min(static_cast<double>(step - schedule.warmup) / static_cast<double>(span), 1.0);
  return schedule.min_lr +
         (schedule.lr - schedule.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

AdamCoefficients MakeAdamCoefficients(const AdamOptions& options, double lr, int64_t step,
                                      double gradient_scale, bool decay) {
  const double t = static_cast<double>(step);
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .keep = static_cast<float>(decay ? 1.0 - lr * options.weight_decay : 1.0),
          .beta1 = static_cast<float>(options.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
          .step_size = static_cast<float>(lr / (1.0 - std::pow(options.beta1, t))),
          .inv_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options.beta2, t))),
          .eps = static_cast<float>(options.eps)};
}

void AdamW(float* __restrict param, const float* __restrict grad, float* __restrict exp_avg,
           float* __restrict exp_avg_sq, int64_t n, const AdamCoefficients& coefficients) {
  // Only +, -, *, / and sqrt, each rounded once: scalar and vector code agree bit for bit.
  const AdamCoefficients c = coefficients;
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * c.gradient_scale;
    const float m = exp_avg[i] * c.beta1 + g * c.one_minus_beta1;
    const float v = exp_avg_sq[i] * c.beta2 + g * g * c.one_minus_beta2;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = param[i] * c.keep - c.step_size * (m / (std::sqrt(v) * c.inv_sqrt_bias2 + c.eps));
  }
}

void RoundToBf16(const float* __restrict from, int64_t n, uint16_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToBf16(from[i]);
}

double SumOfSquares(const float* x, int64_t n) {
  double lanes[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int j = 0; j < 4; ++j) {
      const double value = x[i + j];
      lanes[j] += value * value;
    }
  }
  double sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

double ClipScale(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

std::vector<ParameterRange> RangesOf(const vps::StateCatalog& catalog, const vps::Bucket& bucket,
                                     int64_t begin, int64_t end) {
  std::vector<ParameterRange> ranges;
  if (!bucket.trainable) return ranges;
  for (const vps::BucketEntry& entry : bucket.entries) {
    const int64_t lo = std::max(begin, entry.offset);
    const int64_t hi = std::min(end, entry.offset + entry.box.elems());
    if (lo >= hi) continue;
    const vps::Parameter& parameter = catalog.parameters()[static_cast<size_t>(entry.parameter)];
    const bool has_moments = catalog.Find(entry.parameter, vps::Kind::kExpAvg).has_value() &&
                             catalog.Find(entry.parameter, vps::Kind::kExpAvgSq).has_value();
    ranges.push_back({entry.parameter, lo, hi, parameter.weight_decay, has_moments});
  }
  return ranges;
}

}  // namespace dynatrain::trainer
