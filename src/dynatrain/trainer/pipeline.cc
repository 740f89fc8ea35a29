#include "dynatrain/trainer/pipeline.h"

#include <algorithm>
#include <deque>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace dynatrain::trainer {
namespace {

// Messages of one direction from one neighbour, received in micro-batch order, one posted ahead.
class Inbox {
 public:
  // tag of micro-batch i: 2 * i + direction.
  Inbox(const Comm& pp, int from, int direction, int count, std::vector<int64_t> shape)
      : pp_(pp), from_(from), direction_(direction), count_(count), shape_(std::move(shape)) {
    Post();
  }
  at::Tensor Next() {
    const at::Tensor tensor = tensor_;
    pending_.Wait();
    Post();
    return tensor;
  }

 private:
  void Post() {
    if (next_ == count_) return;
    tensor_ = at::empty(shape_, at::kFloat);
    pending_ = pp_.Receive(tensor_, from_, 2 * next_++ + direction_);
  }

  const Comm& pp_;
  int from_;
  int direction_;
  int count_;
  std::vector<int64_t> shape_;
  int next_ = 0;
  at::Tensor tensor_;
  Pending pending_;
};

// Sends under way, at most `depth` of them.
class Outbox {
 public:
  Outbox(const Comm& pp, size_t depth) : pp_(pp), depth_(depth) {}
  void Send(const at::Tensor& tensor, int to, int tag) {
    if (under_way_.size() == depth_) {
      under_way_.front().Wait();
      under_way_.pop_front();
    }
    under_way_.push_back(pp_.Send(tensor.contiguous(), to, tag));
  }
  void Wait() {
    for (Pending& pending : under_way_) pending.Wait();
    under_way_.clear();
  }

 private:
  const Comm& pp_;
  size_t depth_;
  std::deque<Pending> under_way_;
};

constexpr int kForward = 0;
constexpr int kBackward = 1;

// One stage's run over the micro-batches of a step.
class Schedule {
 public:
  Schedule(const StageModel& model, const Comm& pp, const std::vector<MicroBatch>& batches,
           bool training)
      : model_(model),
        pp_(pp),
        batches_(batches),
        activations_(pp, pp.position() - 1, kForward, model.first() ? 0 : count(),
                     model.activation_shape()),
        gradients_(pp, pp.position() + 1, kBackward, model.last() || !training ? 0 : count(),
                   model.activation_shape()),
        outbox_(pp, static_cast<size_t>(2 * pp.size())) {}

  std::vector<double> Train(double loss_scale) {
    const int warm_up = std::min(pp_.size() - 1 - pp_.position(), count());
    for (int i = 0; i < warm_up; ++i) Forward(i, nullptr);
    for (int i = warm_up; i < count(); ++i) {
      Forward(i, nullptr);
      Backward(i - warm_up, loss_scale);
    }
    for (int i = count() - warm_up; i < count(); ++i) Backward(i, loss_scale);
    outbox_.Wait();
    return losses_;
  }

  std::vector<double> Eval(std::vector<at::Tensor>* logits) {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < count(); ++i) {
      Forward(i, logits);
      in_flight_.clear();
    }
    outbox_.Wait();
    return losses_;
  }

 private:
  struct InFlight {
    at::Tensor input;   // [T, H] leaf; undefined on the first stage
    at::Tensor output;  // [T, H], or the loss on the last stage
  };

  int count() const { return static_cast<int>(batches_.size()); }

  void Forward(int i, std::vector<at::Tensor>* logits) {
    at::Tensor input;
    if (!model_.first()) input = activations_.Next().requires_grad_(at::GradMode::is_enabled());
    at::Tensor scores;
    const at::Tensor output = model_.Forward(batches_[static_cast<size_t>(i)], input,
                                             logits != nullptr ? &scores : nullptr);
    in_flight_.push_back({input, output});
    if (!model_.last()) {
      outbox_.Send(output.detach(), pp_.position() + 1, 2 * i + kForward);
      return;
    }
    losses_.push_back(output.item<double>());
    if (logits != nullptr) logits->push_back(scores);
  }

  void Backward(int i, double loss_scale) {
    InFlight flight = std::move(in_flight_.front());
    in_flight_.pop_front();
    const at::Tensor gradient =
        model_.last() ? at::scalar_tensor(loss_scale, at::kDouble) : gradients_.Next();
    torch::autograd::backward({flight.output}, {gradient});
    if (!model_.first()) outbox_.Send(flight.input.grad(), pp_.position() - 1, 2 * i + kBackward);
  }

  const StageModel& model_;
  const Comm& pp_;
  const std::vector<MicroBatch>& batches_;
  Inbox activations_;
  Inbox gradients_;
  Outbox outbox_;
  std::deque<InFlight> in_flight_;
  std::vector<double> losses_;
};

}  // namespace

std::vector<double> TrainMicroBatches(const StageModel& model, const Comm& pp,
                                      const std::vector<MicroBatch>& batches, double loss_scale) {
  return Schedule(model, pp, batches, true).Train(loss_scale);
}

std::vector<double> EvalMicroBatches(const StageModel& model, const Comm& pp,
                                     const std::vector<MicroBatch>& batches,
                                     std::vector<at::Tensor>* logits) {
  return Schedule(model, pp, batches, false).Eval(logits);
}

}  // namespace dynatrain::trainer
