// A small language model of its own making: predicts the next byte of a text from the four before
// it, with one hidden layer that tensor parallelism cuts. Nothing in here knows DynaTrain.
#ifndef OWN_LOOP_MODEL_H_
#define OWN_LOOP_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

constexpr int64_t kBytes = 256;
constexpr int64_t kContext = 4;
constexpr int64_t kWidth = 12;
constexpr int64_t kHidden = 50;
constexpr int64_t kBatch = 24;  // samples per step, of the whole job

// A communicator as the model uses it; none: alone.
using Group = c10::intrusive_ptr<c10d::Backend>;
void SumOver(const Group& group, const at::Tensor& tensor);

// The tensors that one rank trains, in this order. H = its part of kHidden.
struct Weights {
  at::Tensor embedding;    // [kBytes, kWidth]
  at::Tensor hidden;       // [H, kContext * kWidth]
  at::Tensor hidden_bias;  // [H]
  at::Tensor out;          // [kBytes, H]
  at::Tensor out_bias;     // [kBytes]
};

// Samples [begin, begin + count) of `step`: contexts [count, kContext] and next bytes [count].
struct Samples {
  at::Tensor contexts;
  at::Tensor next;
};
Samples Draw(const std::string& text, int64_t step, int64_t begin, int64_t count);

// Mean cross entropy of the samples; the hidden layer's sums go over `tp`.
at::Tensor Loss(const Weights& weights, const Samples& samples, const Group& tp);

// What a rank works with in one layout: its weights, torch's own Adam on them, its groups.
class Trainer {
 public:
  // weights in the order of Weights, and Adam's moments of each.
  Trainer(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& exp_avg,
          const std::vector<at::Tensor>& exp_avg_sq, Group tp, Group dp);
  void Initialise();  // the same numbers in every layout
  // Trains on samples of `step` (counted from 1); the loss over all of the job's samples.
  double Step(const std::string& text, int64_t step);

 private:
  const std::vector<at::Tensor> all_;
  const Weights weights_;
  const Group tp_, dp_;
  torch::optim::Adam adam_;
};

#endif  // OWN_LOOP_MODEL_H_
