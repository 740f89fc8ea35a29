#include <algorithm>
#include <filesystem>

#include <fmt/ranges.h>

#include "dynatrain/base/text_file.h"
#include "dynatrain/models/config.h"

namespace dynatrain::models {

namespace {

using Family = ModelConfig::Family;

ModelConfig Llama(std::string name, int32_t layers, int64_t hidden, int64_t heads, int64_t kv_heads,
                  int64_t ffn, int64_t vocab, int64_t max_positions) {
  ModelConfig config;
  config.name = std::move(name);
  config.family = Family::kLlama;
  config.layers = layers;
  config.hidden = hidden;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = hidden / heads;
  config.ffn = ffn;
  config.vocab = vocab;
  config.max_positions = max_positions;
  return config;
}

ModelConfig Gpt(std::string name, int32_t layers, int64_t hidden, int64_t heads, int64_t vocab,
                int64_t max_positions) {
  ModelConfig config =
      Llama(std::move(name), layers, hidden, heads, heads, 4 * hidden, vocab, max_positions);
  config.family = Family::kGpt;
  config.tied = config.qkv_bias = config.out_bias = config.mlp_bias = true;
  return config;
}

ModelConfig MicroLlama() {
  ModelConfig config = Llama("micro-llama", 3, 32, 4, 2, 48, 256, 128);
  config.tied = true;
  return config;
}

ModelConfig Llama3(std::string name, int32_t layers, int64_t hidden, int64_t heads, int64_t ffn) {
  ModelConfig config = Llama(std::move(name), layers, hidden, heads, 8, ffn, 128256, 8192);
  config.rope_theta = 500000.0;
  return config;
}

ModelConfig Qwen3(std::string name, int32_t layers, int64_t hidden, int64_t heads, int64_t kv_heads,
                  int64_t ffn) {
  ModelConfig config = Llama(std::move(name), layers, hidden, heads, kv_heads, ffn, 151936, 40960);
  config.head_dim = 128;
  config.rope_theta = 1e6;
  config.norm_eps = 1e-6;
  config.qk_norm = true;
  return config;
}

ModelConfig WithExperts(ModelConfig config, int32_t experts, int32_t per_token, int64_t moe_ffn) {
  config.experts = experts;
  config.experts_per_token = per_token;
  config.moe_ffn = moe_ffn;
  return config;
}

ModelConfig Mixtral8x7b() {
  ModelConfig config = Llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, 32768);
  config.rope_theta = 1e6;
  return WithExperts(std::move(config), 8, 2, 14336);
}

ModelConfig DeepSeekV3() {
  ModelConfig config =
      WithExperts(Llama("deepseek-v3", 61, 7168, 128, 128, 18432, 129280, 163840), 256, 8, 2048);
  config.norm_eps = 1e-6;
  config.rope_scaling = "yarn";
  config.shared_ffn = 2048;
  config.dense_layers = 3;
  config.router_score_bias = true;
  config.q_lora_rank = 1536;
  config.kv_lora_rank = 512;
  config.rope_head_dim = 64;
  config.nope_head_dim = 128;
  config.v_head_dim = 128;
  config.head_dim = 192;
  return config;
}

// GPT-3 XL of Brown et al. 2020, table 2.1, with 16 heads of 128 as its implementations have.
std::vector<ModelConfig> Presets() {
  return {Llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
          Llama("llama2-13b", 40, 5120, 40, 40, 13824, 32000, 4096),
          Llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
          Gpt("gpt3-1.3b", 24, 2048, 16, 50257, 2048),
          Gpt("gpt3-175b", 96, 12288, 96, 50257, 2048),
          Llama3("llama3-8b", 32, 4096, 32, 14336),
          Llama3("llama3-70b", 80, 8192, 64, 28672),
          Qwen3("qwen3-8b", 36, 4096, 32, 8, 12288),
          WithExperts(Qwen3("qwen3-30b-a3b", 48, 2048, 32, 4, 6144), 128, 8, 768),
          WithExperts(Qwen3("qwen3-235b-a22b", 94, 4096, 64, 4, 12288), 128, 8, 1536),
          Mixtral8x7b(),
          DeepSeekV3(),
          Llama("tiny-llama", 7, 192, 8, 4, 512, 256, 256),
          MicroLlama(),
          WithExperts(Llama("tiny-moe", 4, 96, 6, 3, 256, 256, 256), 8, 2, 48),
          Gpt("micro-gpt", 3, 32, 4, 256, 128)};
}

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const ModelConfig& config : Presets()) names.push_back(config.name);
  return names;
}

Result<ModelConfig> LoadModel(const std::string& preset_or_path) {
  for (ModelConfig& config : Presets()) {
    if (config.name == preset_or_path) return std::move(config);
  }
  std::error_code error;
  std::filesystem::path path = preset_or_path;
  if (std::filesystem::is_directory(path, error)) {
    path /= "config.json";
    if (!std::filesystem::exists(path, error)) {
      return NotFound("model '{}' is a folder without a config.json", preset_or_path);
    }
  }
  const Result<std::string> text = ReadTextFile(path.string());
  if (text.status().code() == StatusCode::kNotFound) {
    return NotFound("model '{}' is neither a file nor a preset; presets are {}", preset_or_path,
                    fmt::join(PresetNames(), ", "));
  }
  if (!text.ok()) return text.status().Within(fmt::format("model '{}'", path.string()));
  Result<ModelConfig> config = ParseConfig(*text);
  if (!config.ok()) return config.status().Within(path.string());
  return config;
}

}  // namespace dynatrain::models
