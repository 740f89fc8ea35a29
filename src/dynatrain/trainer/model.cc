#include "dynatrain/trainer/model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "dynatrain/trainer/tensor_parallel.h"

namespace dynatrain::trainer {
namespace {

vps::ParameterId IdOf(const StageParameters& parameters, const std::string& name) {
  const std::optional<vps::ParameterId> id = parameters.map().catalog().FindParameter(name);
  DT_CHECK_MSG(id.has_value(), "the catalog lacks " + name);
  return *id;
}

}  // namespace

StageModel::StageModel(const models::ModelConfig& config, int64_t seq, int64_t micro_batch,
                       StageParameters* parameters, Comm tp)
    : config_(config),
      seq_(seq),
      micro_batch_(micro_batch),
      parameters_(parameters),
      tp_(std::move(tp)) {
  const vps::Layout& layout = parameters->map().layout();
  const int32_t stage = parameters->role().pp;
  first_ = stage == 0;
  last_ = stage == layout.pp - 1;

  const vps::Layout::LayerRange range = layout.LayersOf(stage, config.layers);
  for (int32_t layer = range.begin; layer < range.end; ++layer) layers_.push_back(WeightsOf(layer));
  const int64_t groups = layers_.front().qkv.size(0) / ((config.q_per_kv() + 2) * config.head_dim);
  attention_ = {micro_batch, seq, groups, config.q_per_kv(), config.head_dim};
  tables_ = MakeAttentionTables(seq, config.q_per_kv(), config.head_dim, config.rope_theta);

  const auto vocab_leaf = [&](const std::string& name, bool tied) {
    const vps::ParameterId id = IdOf(*parameters, name);
    const vps::Box& box = parameters->PlaceOf(id).entry.box;  // rows [lo, hi) of the vocabulary
    vocab_lo_ = box.lo()[0];
    return tied ? parameters->TiedLeaf(id, box.extent(0), config.hidden)
                : parameters->Leaf(id, box.extent(0), config.hidden);
  };
  if (first_) embedding_ = vocab_leaf("embedding.weight", false);
  if (last_) {
    final_norm_ = parameters->Leaf(IdOf(*parameters, "final_norm.weight"), config.hidden, 0);
    head_ = vocab_leaf(config.tied ? "embedding.weight" : "head.weight", config.tied && first_);
  }
}

LayerWeights StageModel::WeightsOf(int32_t layer) const {
  const auto leaf = [&](const char* name, bool by_rows) {
    const vps::ParameterId id = IdOf(*parameters_, fmt::format("layers.{}.{}.weight", layer, name));
    const int64_t elems = parameters_->PlaceOf(id).entry.box.elems();
    return by_rows ? parameters_->Leaf(id, elems / config_.hidden, config_.hidden)
                   : parameters_->Leaf(id, config_.hidden, elems / config_.hidden);
  };
  const auto norm = [&](const char* name) {
    return parameters_->Leaf(IdOf(*parameters_, fmt::format("layers.{}.{}.weight", layer, name)),
                             config_.hidden, 0);
  };
  return {norm("input_norm"), leaf("attn.qkv", true),    leaf("attn.out", false),
          norm("post_norm"),  leaf("mlp.gate_up", true), leaf("mlp.down", false)};
}

at::Tensor StageModel::Layer(const LayerWeights& w, const at::Tensor& x) const {
  const at::Tensor attention_in =
      CopyToPositions(RmsNorm(x, w.input_norm, config_.norm_eps), tp_);  // [T, H]
  const at::Tensor qkv = Linear(attention_in, w.qkv);  // [T, G * (q_per_kv + 2) * head_dim]
  const at::Tensor heads =
      CausalAttention(qkv, tables_, attention_);  // [T, G * q_per_kv * head_dim]
  const at::Tensor y = x + SumOverPositions(Linear(heads, w.out), tp_);  // [T, H]
  const at::Tensor mlp_in =
      CopyToPositions(RmsNorm(y, w.post_norm, config_.norm_eps), tp_);  // [T, H]
  const at::Tensor inner = SwiGlu(Linear(mlp_in, w.gate_up));           // [T, F]
  return y + SumOverPositions(Linear(inner, w.down), tp_);              // [T, H]
}

at::Tensor StageModel::Forward(const MicroBatch& batch, const at::Tensor& input,
                               at::Tensor* logits) const {
  at::Tensor x =
      first_ ? VocabParallelEmbedding(batch.ids, embedding_, vocab_lo_, tp_) : input;  // [T, H]
  for (const LayerWeights& weights : layers_) x = Layer(weights, x);
  if (!last_) return x;
  const at::Tensor h = CopyToPositions(RmsNorm(x, final_norm_, config_.norm_eps), tp_);  // [T, H]
  const at::Tensor scores = Linear(h, head_);                                            // [T, V]
  if (logits != nullptr) *logits = scores.detach().clone();
  return VocabParallelCrossEntropy(scores, batch.targets, vocab_lo_, tp_);
}

}  // namespace dynatrain::trainer
