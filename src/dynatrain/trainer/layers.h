// The parts of a decoder layer with their derivatives, as autograd functions.
//
// Weights are leaves whose .grad is a view of a flat gradient buffer: backward adds to it directly
// and hands autograd nothing, so no gradient is ever written twice. Shapes: T = tokens of the
// micro-batch (sequences x positions), H = hidden, and F, G (KV heads), N = extents at this
// tensor-parallel position.
#ifndef DYNATRAIN_TRAINER_LAYERS_H_
#define DYNATRAIN_TRAINER_LAYERS_H_

#include <ATen/core/Tensor.h>

#include "dynatrain/trainer/kernels.h"

namespace dynatrain::trainer {

// x [T, K], weight [N, K] -> x weight^T [T, N].
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight);

// x [T, H], weight [H] -> [T, H].
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// gate_up [T, 2 F]: gate, then up -> silu(gate) * up [T, F].
at::Tensor SwiGlu(const at::Tensor& gate_up);

// What attention needs besides its input; made once.
struct AttentionTables {
  at::Tensor cos, sin;  // [seq, head_dim / 2]
  at::Tensor mask;      // [per_group * seq, seq]: 0 where a query may look, else -inf
};
AttentionTables MakeAttentionTables(int64_t seq, int64_t per_group, int64_t head_dim,
                                    double rope_theta);

// Rotary grouped-query causal attention.
// qkv [T, G * (per_group + 2) * head_dim] -> [T, G * per_group * head_dim].
at::Tensor CausalAttention(const at::Tensor& qkv, const AttentionTables& tables,
                           const AttentionShape& shape);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_LAYERS_H_
