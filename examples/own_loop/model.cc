#include "model.h"

#include <algorithm>

#include <torch/autograd.h>
#include <torch/nn/functional.h>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Identity forward, sum over the group backward: in front of a layer cut by rows.
struct Enter : torch::autograd::Function<Enter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Group& group) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group.get());  // outlives the step
    return x.clone();
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& grads) {
    const at::Tensor grad = grads[0].clone();
    auto* group = reinterpret_cast<c10d::Backend*>(context->saved_data["group"].toInt());
    SumOver(Group::reclaim_copy(group), grad);
    return {grad, at::Tensor()};
  }
};

// Sum over the group forward, identity backward: behind a layer cut by columns.
struct Leave : torch::autograd::Function<Leave> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const Group& group) {
    const at::Tensor sum = x.clone();
    SumOver(group, sum);
    return sum;
  }
  static tensor_list backward(AutogradContext*, const tensor_list& grads) {
    return {grads[0], at::Tensor()};
  }
};

// Scrambles a counter (the finalizer of SplitMix64).
uint64_t Scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

void SumOver(const Group& group, const at::Tensor& tensor) {
  if (!group) return;
  std::vector<at::Tensor> tensors{tensor};
  group->allreduce(tensors)->wait();
}

Samples Draw(const std::string& text, int64_t step, int64_t begin, int64_t count) {
  const Samples samples{at::empty({count, kContext}, at::kLong), at::empty({count}, at::kLong)};
  const uint64_t places = text.size() - kContext;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t place = Scramble(static_cast<uint64_t>(step * kBatch + begin + i)) % places;
    const auto byte = [&](int64_t k) {
      return static_cast<uint8_t>(text[place + static_cast<uint64_t>(k)]);
    };
    for (int64_t k = 0; k < kContext; ++k) samples.contexts[i][k] = byte(k);
    samples.next[i] = byte(kContext);
  }
  return samples;
}

at::Tensor Loss(const Weights& w, const Samples& samples, const Group& tp) {
  const at::Tensor x = w.embedding.index_select(0, samples.contexts.view({-1}))
                           .view({-1, kContext * kWidth});  // [count, kContext * kWidth]
  const at::Tensor h = torch::tanh(
      torch::addmm(w.hidden_bias, tp ? Enter::apply(x, tp) : x, w.hidden.t()));  // [count, H]
  const at::Tensor part = h.matmul(w.out.t());                                   // [count, kBytes]
  const at::Tensor logits = (tp ? Leave::apply(part, tp) : part) + w.out_bias;
  return torch::nn::functional::cross_entropy(logits, samples.next);
}

namespace {

int64_t RankIn(const Group& group) { return group ? group->getRank() : 0; }
int64_t SizeOf(const Group& group) { return group ? group->getSize() : 1; }

// This rank's part of a whole tensor of made-up numbers, of which tp cuts `axis` (-1: none).
void Fill(const at::Tensor& weight, at::IntArrayRef whole_shape, int64_t axis, const Group& tp) {
  const int64_t seed = weight.dim() * 7 + whole_shape[0];
  const int64_t elems = c10::multiply_integers(whole_shape);
  at::Tensor whole = at::sin(at::arange(elems, at::kFloat) * 12.9898 + seed) * 0.2;
  whole = whole.view(whole_shape);
  if (axis >= 0) {
    const int64_t extent = whole_shape[static_cast<size_t>(axis)];
    const int64_t begin =
        RankIn(tp) * (extent / SizeOf(tp)) + std::min(RankIn(tp), extent % SizeOf(tp));
    whole = whole.narrow(axis, begin, weight.size(axis));
  }
  weight.copy_(whole);
}

}  // namespace

Trainer::Trainer(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& exp_avg,
                 const std::vector<at::Tensor>& exp_avg_sq, Group tp, Group dp)
    : all_(weights),
      weights_{weights[0], weights[1], weights[2], weights[3], weights[4]},
      tp_(std::move(tp)),
      dp_(std::move(dp)),
      adam_(all_, torch::optim::AdamOptions(0.01)) {
  for (size_t i = 0; i < all_.size(); ++i) {
    all_[i].requires_grad_(true);
    auto state = std::make_unique<torch::optim::AdamParamState>();
    state->exp_avg(exp_avg[i]).exp_avg_sq(exp_avg_sq[i]);
    adam_.state()[all_[i].unsafeGetTensorImpl()] = std::move(state);
  }
}

void Trainer::Initialise() {
  const at::NoGradGuard no_grad;
  Fill(weights_.embedding, {kBytes, kWidth}, -1, tp_);
  Fill(weights_.hidden, {kHidden, kContext * kWidth}, 0, tp_);
  Fill(weights_.hidden_bias, {kHidden}, 0, tp_);
  Fill(weights_.out, {kBytes, kHidden}, 1, tp_);
  Fill(weights_.out_bias, {kBytes}, -1, tp_);
}

double Trainer::Step(const std::string& text, int64_t step) {
  for (const at::Tensor& weight : all_) {
    auto& state = *adam_.state().at(weight.unsafeGetTensorImpl());
    static_cast<torch::optim::AdamParamState&>(state).step(step - 1);
  }
  const int64_t count = kBatch / SizeOf(dp_);
  adam_.zero_grad();
  const at::Tensor loss = Loss(weights_, Draw(text, step, RankIn(dp_) * count, count), tp_);
  loss.backward();
  for (const at::Tensor& weight : all_) {
    const at::Tensor grad = weight.grad() / SizeOf(dp_);
    SumOver(dp_, grad);
    weight.mutable_grad() = grad;
  }
  adam_.step();
  const at::Tensor mean = loss.detach() / SizeOf(dp_);
  SumOver(dp_, mean);
  return mean.item<double>();
}
