#include "dynatrain/models/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/vps/shard_map.h"

namespace dynatrain::models {
namespace {

std::shared_ptr<const vps::StateCatalog> CatalogOf(const std::string& preset) {
  return *MakeCatalog(*LoadModel(preset), vps::Fp32AdamKinds());
}

// Published: Touvron et al. 2023 model files; GPT-3 XL (Brown et al. 2020) with its stated
// widths, 1.3 billion.
TEST(ParameterCount, EqualsThePublishedOnes) {
  EXPECT_EQ(ParameterCount(*CatalogOf("llama2-7b")), 6738415616);
  EXPECT_EQ(ParameterCount(*CatalogOf("llama2-13b")), 13015864320);
  EXPECT_EQ(ParameterCount(*CatalogOf("llama2-70b")), 68976648192);
  EXPECT_EQ(ParameterCount(*CatalogOf("gpt3-1.3b")), 1315723264);
  EXPECT_EQ(ParameterCount(*CatalogOf("tiny-llama")), 2939712);
}

// 124,439,808: GPT-2 small as released (Radford et al. 2019; the model file of Hugging Face).
TEST(ParameterCount, OfGpt2Small) {
  const ModelConfig config = *ParseConfig(
      R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257})");
  EXPECT_EQ(ParameterCount(**MakeCatalog(config, vps::Fp32AdamKinds())), 124439808);
}

TEST(MakeCatalog, HasLogicalShapes) {
  const auto catalog = CatalogOf("tiny-llama");
  const auto get = [&](std::string_view name) -> const vps::Parameter& {
    return catalog->parameters()[static_cast<size_t>(catalog->FindParameter(name).value())];
  };
  EXPECT_EQ(get("layers.6.attn.qkv.weight").shape, (vps::Shape{4, 4, 24, 192}));
  EXPECT_EQ(get("layers.6.attn.qkv.weight").split, vps::Split::Balanced(0));
  EXPECT_EQ(get("layers.0.attn.out.weight").shape, (vps::Shape{192, 4, 2, 24}));
  EXPECT_EQ(get("layers.0.attn.out.weight").split, vps::Split::Balanced(1));
  EXPECT_EQ(get("layers.0.mlp.gate_up.weight").shape, (vps::Shape{2, 512, 192}));
  EXPECT_EQ(get("layers.0.mlp.gate_up.weight").split, vps::Split::Balanced(1));
  EXPECT_EQ(get("layers.0.mlp.down.weight").split, vps::Split::Balanced(1));
  EXPECT_EQ(get("head.weight").homes, std::vector{vps::Home::Head()});
  EXPECT_EQ(get("final_norm.weight").shape, (vps::Shape{192}));
  EXPECT_FALSE(get("final_norm.weight").weight_decay);
  EXPECT_TRUE(get("head.weight").weight_decay);
  EXPECT_EQ(catalog->num_layers(), 7);
  EXPECT_EQ(catalog->FindParameter("layers.0.attn.qkv.bias"), std::nullopt);
}

TEST(MakeCatalog, TiesTheHeadToTheEmbedding) {
  const auto catalog = CatalogOf("micro-llama");
  EXPECT_EQ(catalog->FindParameter("head.weight"), std::nullopt);
  EXPECT_EQ(catalog->parameters()[0].homes,
            (std::vector{vps::Home::Embedding(), vps::Home::Head()}));
}

TEST(MakeCatalog, GptHasBiasesAndLearnedPositions) {
  const auto catalog = CatalogOf("micro-gpt");
  std::vector<std::string> names;
  for (const vps::Parameter& p : catalog->parameters()) {
    if (p.homes[0].place != vps::Home::Place::kLayer || p.homes[0].layer == 2)
      names.push_back(p.name);
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre(
                  "embedding.weight", "embedding.position.weight", "layers.2.input_norm.weight",
                  "layers.2.input_norm.bias", "layers.2.attn.qkv.weight", "layers.2.attn.qkv.bias",
                  "layers.2.attn.out.weight", "layers.2.attn.out.bias", "layers.2.post_norm.weight",
                  "layers.2.post_norm.bias", "layers.2.mlp.up.weight", "layers.2.mlp.up.bias",
                  "layers.2.mlp.down.weight", "layers.2.mlp.down.bias", "final_norm.weight",
                  "final_norm.bias"));
}

TEST(MakeCatalog, EveryPresetHasAShardMap) {
  for (const std::string& preset : PresetNames()) {
    const auto map =
        vps::LayoutShardMap::Make(CatalogOf(preset), *vps::ParseLayout("tp=2,pp=3,dp=3,zero=1"));
    EXPECT_TRUE(map.ok()) << preset << ": " << map.status().ToString();
  }
}

TEST(CheckLayout, RefusesWhatDoesNotFitWithTheNumbers) {
  const ModelConfig config = *LoadModel("tiny-llama");
  const auto error = [&](std::string_view spec) {
    const Status status = CheckLayout(config, *vps::ParseLayout(spec));
    EXPECT_FALSE(status.ok()) << spec;
    return status.message();
  };
  EXPECT_TRUE(CheckLayout(config, *vps::ParseLayout("tp=3,pp=3,dp=3,zero=1")).ok());
  EXPECT_EQ(error("tp=5"),
            "tp=5: 4 key-value heads do not split over 5 positions; right is tp=1 to tp=4");
  EXPECT_EQ(error("pp=8"), "pp=8: 7 layers do not fill 8 stages; right is pp=1 to pp=7");
  EXPECT_EQ(error("pp=2,split=7+0"),
            "split: stage 1 has no layer; right is at least 1 of the 7 layers per stage");
  EXPECT_EQ(error("pp=2,split=3+3"), "split=3+3 places 6 layers, the model has 7");
  ModelConfig narrow = config;
  narrow.ffn = 2;
  EXPECT_EQ(CheckLayout(narrow, *vps::ParseLayout("tp=3")).message(),
            "tp=3: ffn 2 and vocabulary 256 do not split over 3 positions; right is tp=1 to tp=2");
}

}  // namespace
}  // namespace dynatrain::models
