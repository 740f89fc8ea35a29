#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/ranges.h>

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

// GPT-3 XL of Brown et al. 2020, table 2.1, with 16 heads of 128 as its implementations have.
std::vector<ModelConfig> Presets() {
  return {Llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
          Llama("llama2-13b", 40, 5120, 40, 40, 13824, 32000, 4096),
          Llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
          Gpt("gpt3-1.3b", 24, 2048, 16, 50257, 2048),
          Llama("tiny-llama", 7, 192, 8, 4, 512, 256, 256),
          MicroLlama(),
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
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  if (!std::filesystem::is_regular_file(path, error)) {
    return NotFound("model '{}' is neither a file nor a preset; presets are {}", preset_or_path,
                    fmt::join(PresetNames(), ", "));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file)
    return Unavailable("model '{}' cannot be read: {}", path.string(), std::strerror(errno));
  Result<ModelConfig> config = ParseConfig(text.str());
  if (!config.ok()) return config.status().Within(path.string());
  return config;
}

}  // namespace dynatrain::models
