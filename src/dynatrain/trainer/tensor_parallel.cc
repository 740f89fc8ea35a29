#include "dynatrain/trainer/tensor_parallel.h"

#include <limits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dynatrain::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// A Comm in an autograd context.
struct CommHolder : torch::CustomClassHolder {
  explicit CommHolder(Comm c) : comm(std::move(c)) {}
  Comm comm;
};

struct CopyFunction : Function<CopyFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Comm& tp) {
    ctx->saved_data["tp"] = c10::IValue::make_capsule(c10::make_intrusive<CommHolder>(tp));
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder = ctx->saved_data["tp"].toCapsule();
    const at::Tensor dx = grads[0].contiguous();
    static_cast<CommHolder&>(*holder).comm.AllReduceSum(dx);
    return {dx, at::Tensor()};
  }
};

struct SumFunction : Function<SumFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Comm& tp) {
    ctx->mark_dirty({x});
    tp.AllReduceSum(x);
    return x;
  }
  static variable_list backward(AutogradContext*, variable_list grads) {
    return {grads[0], at::Tensor()};
  }
};

// Rows of a part of the vocabulary: index inside the part, and 1 where the id is in it.
struct LocalIds {
  at::Tensor index;   // [T] int64 in [0, rows)
  at::Tensor inside;  // [T, 1] float
};

LocalIds ToLocal(const at::Tensor& ids, int64_t lo, int64_t rows) {
  const at::Tensor local = ids - lo;
  const at::Tensor inside = at::logical_and(local >= 0, local < rows).to(at::kFloat).unsqueeze(1);
  return {local.clamp(0, rows - 1), inside};
}

struct EmbeddingFunction : Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ids, const at::Tensor& weight,
                            int64_t lo, const Comm& tp) {
    const LocalIds local = ToLocal(ids, lo, weight.size(0));
    at::Tensor y = weight.index_select(0, local.index);  // [T, H]
    if (tp.size() > 1) {
      y.mul_(local.inside);
      tp.AllReduceSum(y);
    }
    ctx->save_for_backward({weight, local.index, local.inside});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[0];
    if (weight.requires_grad()) {
      weight.mutable_grad().index_add_(0, saved[1], grads[0] * saved[2]);  // in token order
    }
    return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct CrossEntropyFunction : Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& targets, int64_t lo, const Comm& tp) {
    const LocalIds target = ToLocal(targets, lo, logits.size(1));
    const at::Tensor column = target.index.unsqueeze(1);                        // [T, 1]
    const at::Tensor max = logits.amax(1, true);                                // [T, 1]
    const at::Tensor at_target = logits.gather(1, column).mul_(target.inside);  // [T, 1]
    const at::Tensor exps = logits.detach().sub_(max).exp_();                   // [T, V]
    const at::Tensor sums = exps.sum(1, true);                                  // [T, 1]
    const at::Tensor parts = tp.AllGather(at::stack({max, sums, at_target}));   // [tp, 3, T, 1]
    const at::Tensor all_max = parts.select(1, 0).amax(0);
    const at::Tensor all_sums = (parts.select(1, 1) * (parts.select(1, 0) - all_max).exp()).sum(0);
    const at::Tensor loss = all_sums.log() + all_max - parts.select(1, 2).sum(0);  // [T, 1]
    exps.mul_((max - all_max).exp_().div_(all_sums));                              // probabilities
    ctx->save_for_backward({exps, column, target.inside});
    return loss.to(at::kDouble).sum();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dlogits = saved[0].scatter_add_(1, saved[1], -saved[2]);  // used up
    dlogits.mul_(grads[0].item<double>());
    return {dlogits, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor CopyToPositions(const at::Tensor& x, const Comm& tp) {
  return tp.size() == 1 ? x : CopyFunction::apply(x, tp);
}

at::Tensor SumOverPositions(const at::Tensor& x, const Comm& tp) {
  return tp.size() == 1 ? x : SumFunction::apply(x, tp);
}

at::Tensor VocabParallelEmbedding(const at::Tensor& ids, const at::Tensor& weight, int64_t lo,
                                  const Comm& tp) {
  return EmbeddingFunction::apply(ids, weight, lo, tp);
}

at::Tensor VocabParallelCrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                                     int64_t lo, const Comm& tp) {
  return CrossEntropyFunction::apply(logits, targets, lo, tp);
}

}  // namespace dynatrain::trainer
