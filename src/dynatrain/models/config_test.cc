#include "dynatrain/models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "dynatrain/base/random.h"

namespace dynatrain::models {
namespace {

constexpr std::string_view kLlama2 =
    R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
  "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
  "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_scaling": null, "tie_word_embeddings": false})";

std::string ErrorOf(std::string_view json) {
  const Result<ModelConfig> config = ParseConfig(json);
  EXPECT_FALSE(config.ok());
  return config.status().message();
}

std::string Changed(std::string_view from, std::string_view to) {
  std::string json(kLlama2);
  const size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos);
  return json.replace(at, from.size(), to);
}

TEST(ParseConfig, ReadsLlama) {
  ModelConfig config = *ParseConfig(kLlama2);
  EXPECT_EQ(config.name, "llama");
  config.name = "llama2-70b";
  EXPECT_EQ(config, *LoadModel("llama2-70b"));
}

TEST(ParseConfig, FillsWhatLlamaFilesLeaveOut) {
  const ModelConfig config = *ParseConfig(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
          "num_attention_heads": 4, "vocab_size": 100, "attention_bias": true,
          "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0}})");
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.rope_scaling, "llama3");
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.out_bias);
  EXPECT_FALSE(config.mlp_bias);
}

TEST(ParseConfig, ReadsGpt2) {
  const ModelConfig config = *ParseConfig(
      R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
          "n_inner": null, "layer_norm_epsilon": 1e-05})");
  EXPECT_EQ(config.family, ModelConfig::Family::kGpt);
  EXPECT_EQ(config.ffn, 3072);
  EXPECT_EQ(config.kv_heads, 12);
  EXPECT_TRUE(config.tied);
}

TEST(ParseConfig, ReadsLlama3AndDenseQwen3) {
  ModelConfig llama = *ParseConfig(
      R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
          "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
          "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
          "rope_theta": 500000.0})");
  llama.name = "llama3-8b";
  EXPECT_EQ(llama, *LoadModel("llama3-8b"));
  ModelConfig qwen = *ParseConfig(
      R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
          "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
          "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
          "rms_norm_eps": 1e-06, "rope_theta": 1000000.0})");
  qwen.name = "qwen3-8b";
  EXPECT_EQ(qwen, *LoadModel("qwen3-8b"));
}

TEST(ParseConfig, ReadsExperts) {
  ModelConfig qwen = *ParseConfig(
      R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
          "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
          "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06,
          "rope_theta": 1000000.0, "num_experts": 128, "num_experts_per_tok": 8,
          "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": []})");
  qwen.name = "qwen3-30b-a3b";
  EXPECT_EQ(qwen, *LoadModel("qwen3-30b-a3b"));
  ModelConfig deepseek = *ParseConfig(
      R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
          "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
          "vocab_size": 129280, "max_position_embeddings": 163840, "rms_norm_eps": 1e-06,
          "rope_scaling": {"type": "yarn", "factor": 40}, "n_routed_experts": 256,
          "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
          "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
          "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128})");
  deepseek.name = "deepseek-v3";
  EXPECT_EQ(deepseek, *LoadModel("deepseek-v3"));
  ModelConfig mixtral = *ParseConfig(
      R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
          "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
          "vocab_size": 32000, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05,
          "rope_theta": 1000000.0, "num_local_experts": 8, "num_experts_per_tok": 2})");
  mixtral.name = "mixtral-8x7b";
  EXPECT_EQ(mixtral, *LoadModel("mixtral-8x7b"));
  EXPECT_THAT(ErrorOf(R"({"model_type": "qwen3_moe", "hidden_size": 8, "intermediate_size": 8,
          "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 8, "num_experts": 4,
          "num_experts_per_tok": 2, "moe_intermediate_size": 4, "mlp_only_layers": [0]})"),
              "key 'mlp_only_layers' is [0]; available is none");
  EXPECT_EQ(ErrorOf(R"({"model_type": "qwen3_moe", "hidden_size": 8, "intermediate_size": 8,
          "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 8,
          "num_experts": 2147483648, "num_experts_per_tok": 2, "moe_intermediate_size": 4})"),
            "key 'num_experts' is 2147483648; right is a whole number of 1 to 1048576");
}

// Each family names the number of experts in its own way.
TEST(ParseConfig, ATokenTakesNoMoreExpertsThanThereAre) {
  for (const auto& [type, key] : {std::pair("qwen3_moe", "num_experts"),
                                  {"mixtral", "num_local_experts"},
                                  {"deepseek_v2", "n_routed_experts"},
                                  {"deepseek_v3", "n_routed_experts"}}) {
    const auto json = [&](int per_token) {
      return fmt::format(
          R"({{"model_type": "{}", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
               "num_attention_heads": 2, "vocab_size": 8, "{}": 4, "num_experts_per_tok": {},
               "moe_intermediate_size": 4, "kv_lora_rank": 4, "qk_rope_head_dim": 2,
               "qk_nope_head_dim": 2, "v_head_dim": 2}})",
          type, key, per_token);
    };
    EXPECT_EQ(ErrorOf(json(5)),
              fmt::format("key 'num_experts_per_tok' is 5; right is 1 to the 4 of '{}'", key));
    EXPECT_EQ(ParseConfig(json(4))->experts_per_token, 4) << type;
  }
}

TEST(ParseConfig, RefusesNamingTheKey) {
  EXPECT_THAT(ErrorOf("{"), ::testing::StartsWith("not JSON: "));
  EXPECT_EQ(ErrorOf("[1]"), "not a JSON object");
  EXPECT_EQ(
      ErrorOf("{}"),
      "model_type '' is not available; available are llama, mistral, qwen2, qwen3, qwen3_moe, "
      "mixtral, deepseek_v2, deepseek_v3, gpt2");
  EXPECT_EQ(ErrorOf(Changed("\"hidden_size\": 8192,", "")), "key 'hidden_size' is missing");
  for (const char* value : {"-1", "0", "2.5", "4611686018427387904", "18446744073709551615",
                            "36893488147419103232", "1099511627777", "true", "[28672]"}) {
    const std::string error = ErrorOf(Changed("28672", value));
    EXPECT_THAT(error, ::testing::StartsWith("key 'intermediate_size' is "));
    EXPECT_THAT(error, ::testing::EndsWith("; right is a whole number of 1 to 1099511627776"));
  }
  EXPECT_EQ(ErrorOf(Changed(": 80", ": 80000000000")),
            "key 'num_hidden_layers' is 80000000000; right is a whole number of 1 to 100000");
  EXPECT_EQ(ErrorOf(Changed("\"vocab_size\": 32000", "\"vocab_size\": 32000, \"vocab_size\": 7")),
            "key 'vocab_size' is given twice; right is once");
  EXPECT_EQ(ErrorOf(Changed("\"rope_scaling\": null",
                            R"("rope_scaling": {"type": "a", "factor": 1, "type": "b"})")),
            "key 'type' is given twice; right is once");
  EXPECT_EQ(
      ErrorOf(Changed("\"hidden_size\": 8192", "\"hidden_size\": 8100")),
      "key 'hidden_size' is 8100; right is a multiple of the 64 of 'num_attention_heads', or a "
      "key 'head_dim'");
  EXPECT_EQ(
      ParseConfig(Changed("\"hidden_size\": 8192", "\"hidden_size\": 8100, \"head_dim\": 128"))
          ->head_dim,
      128);
  EXPECT_EQ(ErrorOf(R"({"model_type": "gpt2", "n_embd": 10, "n_layer": 2, "n_head": 4,
                        "n_positions": 8, "vocab_size": 8})"),
            "key 'n_embd' is 10; right is a multiple of the 4 of 'n_head'");
  EXPECT_EQ(ErrorOf(Changed("\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7")),
            "64 query heads are not a multiple of 7 key-value heads");
  EXPECT_EQ(ErrorOf(Changed("false", "\"no\"")),
            "key 'tie_word_embeddings' is \"no\"; right is true or false");
  EXPECT_EQ(ErrorOf(Changed("1e-05", "0")), "key 'rms_norm_eps' is 0; right is a number above 0");
  EXPECT_EQ(ErrorOf(Changed("\"rope_scaling\": null", "\"hidden_act\": \"relu\"")),
            "key 'hidden_act' is \"relu\"; available is \"silu\"");
  EXPECT_EQ(ErrorOf(Changed("\"rope_scaling\": null", "\"rope_scaling\": 4")),
            "key 'rope_scaling' is 4; right is an object");
}

TEST(ParseConfigProperty, AnyBrokenFileIsReadOrRefused) {
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    Random random(seed);
    std::string json(kLlama2);
    for (int64_t i = random.Between(1, 4); i > 0; --i) {
      const auto at = static_cast<size_t>(random.Between(0, static_cast<int64_t>(json.size()) - 1));
      json[at] = "0123456789{}[]\",:-.e \\x"[static_cast<size_t>(random.Between(0, 22))];
    }
    const Result<ModelConfig> config = ParseConfig(json);
    EXPECT_NE(config.ok(), !config.status().message().empty()) << "seed " << seed;
  }
}

TEST(LoadModel, ReadsFilesAndFolders) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "dynatrain_load_model";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << kLlama2;
  EXPECT_EQ(LoadModel(folder.string())->hidden, 8192);
  EXPECT_EQ(LoadModel((folder / "config.json").string())->hidden, 8192);
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_EQ(LoadModel(folder.string()).status().message(),
            (folder / "config.json").string() +
                ": model_type '' is not available; available are llama, mistral, qwen2, qwen3, "
                "qwen3_moe, "
                "mixtral, deepseek_v2, deepseek_v3, gpt2");
  std::filesystem::remove(folder / "config.json");
  ASSERT_EQ(::mkfifo((folder / "config.json").c_str(), 0600), 0);
  EXPECT_EQ(LoadModel(folder.string()).status().message(),
            fmt::format("model '{}': a pipe; right is a regular file of at most 16 MiB",
                        (folder / "config.json").string()));
  std::filesystem::remove(folder / "config.json");
  EXPECT_EQ(LoadModel(folder.string()).status().message(),
            fmt::format("model '{}' is a folder without a config.json", folder.string()));
  std::filesystem::remove_all(folder);
  EXPECT_THAT(LoadModel("llama9").status().message(),
              ::testing::StartsWith(
                  "model 'llama9' is neither a file nor a preset; presets are llama2-7b, "));
}

}  // namespace
}  // namespace dynatrain::models
