#include "dynatrain/trainer/layers.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dynatrain::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct LinearFunction : Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight) {
    ctx->save_for_backward({x, weight});
    return at::mm(x, weight.t());  // [T, N]
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], dy = grads[0].contiguous();  // dy [T, N]
    if (weight.requires_grad()) weight.mutable_grad().addmm_(dy.t(), x);             // [N, K]
    return {ctx->needs_input_grad(0) ? at::mm(dy, weight) : at::Tensor(), at::Tensor()};
  }
};

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const int64_t rows = x.size(0), width = x.size(1);
    at::Tensor y = at::empty_like(x), inv_rms = at::empty({rows}, x.options());
    RmsNormForward(x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                   static_cast<float>(eps), rows, width, y.mutable_data_ptr<float>(),
                   inv_rms.mutable_data_ptr<float>());
    ctx->save_for_backward({x, weight, inv_rms});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inv_rms = saved[2];
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    float* dweight =
        weight.requires_grad() ? weight.mutable_grad().mutable_data_ptr<float>() : nullptr;
    RmsNormBackward(dy.const_data_ptr<float>(), x.const_data_ptr<float>(),
                    weight.const_data_ptr<float>(), inv_rms.const_data_ptr<float>(), x.size(0),
                    x.size(1), dx.mutable_data_ptr<float>(), dweight);
    return {dx, at::Tensor(), at::Tensor()};
  }
};

struct SwiGluFunction : Function<SwiGluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    const int64_t ffn = gate_up.size(1) / 2;
    ctx->save_for_backward({gate_up});
    return at::silu(gate_up.narrow(1, 0, ffn)).mul_(gate_up.narrow(1, ffn, ffn));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& dy = grads[0];  // [T, F]
    const int64_t ffn = dy.size(1);
    const at::Tensor gate = saved[0].narrow(1, 0, ffn), up = saved[0].narrow(1, ffn, ffn);
    at::Tensor d_gate_up = at::empty_like(saved[0]);
    d_gate_up.narrow(1, 0, ffn).copy_(at::silu_backward(dy * up, gate));
    d_gate_up.narrow(1, ffn, ffn).copy_(at::silu(gate).mul_(dy));
    return {d_gate_up};
  }
};

struct AttentionFunction : Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv,
                            const AttentionTables& tables, const AttentionShape& s) {
    const int64_t b = s.batch * s.groups, rows = s.per_group * s.seq;
    at::Tensor q = at::empty({b, rows, s.head_dim}, qkv.options());
    at::Tensor k = at::empty({b, s.seq, s.head_dim}, qkv.options());
    at::Tensor v = at::empty({b, s.seq, s.head_dim}, qkv.options());
    SplitHeads(s, qkv.const_data_ptr<float>(), tables.cos.const_data_ptr<float>(),
               tables.sin.const_data_ptr<float>(), q.mutable_data_ptr<float>(),
               k.mutable_data_ptr<float>(), v.mutable_data_ptr<float>());
    const at::Tensor scores =  // [b, per_group * seq, seq]
        at::baddbmm(tables.mask, q, k.transpose(1, 2), 1.0, Scale(s));
    const at::Tensor weights = at::_softmax(scores, -1, false);
    const at::Tensor heads = at::bmm(weights, v);  // [b, per_group * seq, head_dim]
    ctx->save_for_backward({q, k, v, weights});
    ctx->saved_data["cos"] = tables.cos;
    ctx->saved_data["sin"] = tables.sin;
    ctx->saved_data["shape"] =
        std::vector<int64_t>{s.batch, s.seq, s.groups, s.per_group, s.head_dim};
    return heads.view({s.batch, s.groups, s.per_group, s.seq, s.head_dim})
        .permute({0, 3, 1, 2, 4})
        .reshape({s.batch * s.seq, s.groups * s.per_group * s.head_dim});
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &weights = saved[3];
    const std::vector<int64_t> e = ctx->saved_data["shape"].toIntVector();
    const AttentionShape s{e[0], e[1], e[2], e[3], e[4]};
    const at::Tensor dheads = grads[0]
                                  .reshape({s.batch, s.seq, s.groups, s.per_group, s.head_dim})
                                  .permute({0, 2, 3, 1, 4})
                                  .reshape(q.sizes());
    const at::Tensor dv = at::bmm(weights.transpose(1, 2), dheads);
    const at::Tensor dweights = at::bmm(dheads, v.transpose(1, 2));
    const at::Tensor dscores =
        at::_softmax_backward_data(dweights, weights, -1, at::kFloat).mul_(Scale(s));
    const at::Tensor dq = at::bmm(dscores, k);
    const at::Tensor dk = at::bmm(dscores.transpose(1, 2), q);
    at::Tensor dqkv =
        at::empty({s.batch * s.seq, s.groups * (s.per_group + 2) * s.head_dim}, q.options());
    MergeHeads(
        s, dq.const_data_ptr<float>(), dk.const_data_ptr<float>(), dv.const_data_ptr<float>(),
        ctx->saved_data["cos"].toTensor().const_data_ptr<float>(),
        ctx->saved_data["sin"].toTensor().const_data_ptr<float>(), dqkv.mutable_data_ptr<float>());
    return {dqkv, at::Tensor(), at::Tensor()};
  }
  static double Scale(const AttentionShape& s) {
    return 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  }
};

}  // namespace

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight) {
  return LinearFunction::apply(x, weight);
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps);
}

at::Tensor SwiGlu(const at::Tensor& gate_up) { return SwiGluFunction::apply(gate_up); }

AttentionTables MakeAttentionTables(int64_t seq, int64_t per_group, int64_t head_dim,
                                    double rope_theta) {
  // In float32 throughout, as the reference computes them.
  const at::Tensor exponent =
      at::arange(0, head_dim, 2, at::kFloat).div(static_cast<double>(head_dim));
  const at::Tensor inv_freq = at::pow(rope_theta, exponent).reciprocal();  // [head_dim / 2]
  const at::Tensor angle =
      at::outer(at::arange(0, seq, at::kFloat), inv_freq);  // [seq, head_dim / 2]
  const at::Tensor mask =
      at::full({seq, seq}, -std::numeric_limits<double>::infinity(), at::kFloat).triu(1);
  return {angle.cos().contiguous(), angle.sin().contiguous(), mask.repeat({per_group, 1})};
}

at::Tensor CausalAttention(const at::Tensor& qkv, const AttentionTables& tables,
                           const AttentionShape& shape) {
  return AttentionFunction::apply(qkv, tables, shape);
}

}  // namespace dynatrain::trainer
