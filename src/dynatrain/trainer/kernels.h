// The loops that torch has no single operation for, on plain row-major float arrays. The result of
// an element depends neither on alignment nor on what lies beside it. Any thread; the caller owns
// all memory.
#ifndef DYNATRAIN_TRAINER_KERNELS_H_
#define DYNATRAIN_TRAINER_KERNELS_H_

#include <cstdint>

namespace dynatrain::trainer {

// RMSNorm (Zhang, Sennrich 2019) of each row: inv_rms[t] = (mean_c x[t,c]^2 + eps)^-1/2,
// y[t,c] = x[t,c] * inv_rms[t] * weight[c].   x, y: [rows, width]; weight: [width];
// inv_rms: [rows].
void RmsNormForward(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                    float* y, float* inv_rms);
// dx is written, dweight (if not null) is added to.   dy, x, dx: [rows, width].
void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* inv_rms,
                     int64_t rows, int64_t width, float* dx, float* dweight);

// Shapes of attention over one micro-batch at one tensor-parallel position.
struct AttentionShape {
  int64_t batch;      // sequences
  int64_t seq;        // positions
  int64_t groups;     // KV heads here
  int64_t per_group;  // query heads of each
  int64_t head_dim;
};

// Rotary embedding (Su et al. 2021, halves convention of LLaMA) while sorting by head:
//   qkv [batch, seq, groups, per_group + 2, head_dim]  ->
//   q [batch, groups, per_group, seq, head_dim] and k [batch, groups, seq, head_dim], both rotated,
//   v [batch, groups, seq, head_dim].
// cos, sin: [seq, head_dim / 2].
void SplitHeads(const AttentionShape& shape, const float* qkv, const float* cos, const float* sin,
                float* q, float* k, float* v);
// The transposed map: gradients of q, k, v -> gradient of qkv, which is written whole.
void MergeHeads(const AttentionShape& shape, const float* q, const float* k, const float* v,
                const float* cos, const float* sin, float* qkv);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_KERNELS_H_
