// StageModel: the part of a LLaMA decoder that one rank computes — some layers, cut over
// tensor-parallel positions, with the embedding on the first stage and the head on the last.
//
// Shapes: T = micro-batch sequences x seq tokens, H = hidden; G KV heads, F ffn columns and V rows
// of the vocabulary at this tensor-parallel position (parts may be uneven).
#ifndef DYNATRAIN_TRAINER_MODEL_H_
#define DYNATRAIN_TRAINER_MODEL_H_

#include <vector>

#include <ATen/core/Tensor.h>

#include "dynatrain/models/config.h"
#include "dynatrain/trainer/comm.h"
#include "dynatrain/trainer/layers.h"
#include "dynatrain/trainer/parameters.h"

namespace dynatrain::trainer {

struct MicroBatch {
  at::Tensor ids;      // [T] int64
  at::Tensor targets;  // [T] int64: the token after each
};

struct LayerWeights {
  at::Tensor input_norm;  // [H]
  at::Tensor qkv;         // [G * (q_per_kv + 2) * head_dim, H]
  at::Tensor out;         // [H, G * q_per_kv * head_dim]
  at::Tensor post_norm;   // [H]
  at::Tensor gate_up;     // [2 * F, H]
  at::Tensor down;        // [H, F]
};

// Used by one thread at a time. Forward throws what torch and c10d throw.
class StageModel {
 public:
  // `parameters` outlives the model. Precondition: a model of family kLlama without biases, which
  // the layout fits.
  StageModel(const models::ModelConfig& config, int64_t seq, int64_t micro_batch,
             StageParameters* parameters, Comm tp);

  bool first() const { return first_; }
  bool last() const { return last_; }
  std::vector<int64_t> activation_shape() const { return {micro_batch_ * seq_, config_.hidden}; }

  // input: [T, H] from the previous stage; ignored on the first. Returns [T, H] for the next stage;
  // on the last, the sum of the tokens' losses (float64 scalar), and in `logits`, if asked for, a
  // copy of the logits [T, V].
  at::Tensor Forward(const MicroBatch& batch, const at::Tensor& input,
                     at::Tensor* logits = nullptr) const;

 private:
  LayerWeights WeightsOf(int32_t layer) const;
  at::Tensor Layer(const LayerWeights& w, const at::Tensor& x) const;

  models::ModelConfig config_;
  int64_t seq_;
  int64_t micro_batch_;
  const StageParameters* parameters_;
  Comm tp_;
  bool first_;
  bool last_;
  AttentionShape attention_{};
  AttentionTables tables_;
  at::Tensor embedding_;  // [V, H]
  std::vector<LayerWeights> layers_;
  at::Tensor final_norm_;  // [H]
  at::Tensor head_;        // [V, H]
  int64_t vocab_lo_ = 0;
};

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_MODEL_H_
