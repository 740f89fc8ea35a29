// ModelConfig: what a transformer is made of, read from a Hugging Face config.json or a preset.
//
//   ModelConfig config = *LoadModel("llama2-7b");            // a preset
//   ModelConfig config = *LoadModel("/models/x/config.json");  // a file, or the folder that holds
//   it
#ifndef DYNATRAIN_MODELS_CONFIG_H_
#define DYNATRAIN_MODELS_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dynatrain/base/status.h"

namespace dynatrain::models {

struct ModelConfig {
  enum class Family : uint8_t {
    kLlama,  // RMSNorm, rotary positions, gated SiLU MLP
    kGpt     // LayerNorm, learned positions, GELU MLP
  };
  std::string name;  // the preset, or model_type of the file
  Family family = Family::kLlama;
  int32_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;     // query heads
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  int64_t ffn = 0;  // inner width of the MLP
  int64_t vocab = 0;
  int64_t max_positions = 0;
  double rope_theta = 10000.0;  // kLlama
  std::string rope_scaling;     // its type, as "llama3"; empty: plain rotary positions
  double norm_eps = 1e-5;
  bool tied = false;      // the head's weight is the embedding's
  bool qkv_bias = false;  // biases; always on in kGpt
  bool out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim of queries and keys

  // Mixture of experts; 0 experts: every MLP is dense.
  int32_t experts = 0;
  int32_t experts_per_token = 0;
  int64_t moe_ffn = 0;             // inner width of a routed expert
  int64_t shared_ffn = 0;          // inner width of all shared experts together; 0: none
  int32_t dense_layers = 0;        // the first ones, whose MLP is dense
  bool router_score_bias = false;  // a bias per expert that balances load; no gradient

  // Multi-head latent attention (DeepSeek); kv_lora_rank 0: grouped-query attention.
  int64_t q_lora_rank = 0;  // 0: queries are projected at once
  int64_t kv_lora_rank = 0;
  int64_t rope_head_dim = 0;
  int64_t nope_head_dim = 0;
  int64_t v_head_dim = 0;

  int64_t q_per_kv() const { return heads / kv_heads; }
  bool IsMoe(int32_t layer) const { return experts > 0 && layer >= dense_layers; }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// From the text of a config.json of model_type llama, mistral, qwen2, qwen3, qwen3_moe, mixtral,
// deepseek_v2, deepseek_v3 or gpt2. Names the key that is missing or wrong.
Result<ModelConfig> ParseConfig(std::string_view json);

// From a preset's name, else from a file (ReadTextFile) or a folder with a config.json.
Result<ModelConfig> LoadModel(const std::string& preset_or_path);

std::vector<std::string> PresetNames();

}  // namespace dynatrain::models

#endif  // DYNATRAIN_MODELS_CONFIG_H_
