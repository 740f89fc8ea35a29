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
  EXPECT_EQ(ParameterCount(*CatalogOf("gpt3-175b")), 174604259328);
  EXPECT_EQ(ParameterCount(*CatalogOf("llama3-8b")), 8030261248);
  EXPECT_EQ(ParameterCount(*CatalogOf("llama3-70b")), 70553706496);
  EXPECT_EQ(ParameterCount(*CatalogOf("qwen3-8b")), 8190735360);
  EXPECT_EQ(ParameterCount(*CatalogOf("qwen3-30b-a3b")), 30532122624);
  EXPECT_EQ(ParameterCount(*CatalogOf("qwen3-235b-a22b")), 235093634560);
  EXPECT_EQ(ParameterCount(*CatalogOf("mixtral-8x7b")), 46702792704);
  EXPECT_EQ(ParameterCount(*CatalogOf("deepseek-v3")), 671026419200);
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

TEST(MakeCatalog, ExpertsInStacksOrOneByOne) {
  const ModelConfig config = *LoadModel("tiny-moe");
  const auto stacks = *MakeCatalog(config, vps::Fp32AdamKinds());
  const auto singles = *MakeCatalog(config, vps::Fp32AdamKinds(), {.expert_stacks = false});
  EXPECT_EQ(ParameterCount(*stacks), ParameterCount(*singles));
  const vps::Parameter& stack = stacks->parameters()[static_cast<size_t>(
      stacks->FindParameter("layers.3.mlp.experts.gate_up.weight").value())];
  EXPECT_EQ(stack.shape, (vps::Shape{8, 2, 48, 96}));
  EXPECT_EQ(stack.experts, vps::Experts::Stack(0));
  const vps::Parameter& one = singles->parameters()[static_cast<size_t>(
      singles->FindParameter("layers.3.mlp.experts.5.down.weight").value())];
  EXPECT_EQ(one.shape, (vps::Shape{96, 48}));
  EXPECT_EQ(one.experts, vps::Experts::One(5, 8));
}

TEST(MakeCatalog, GateAndUpInBlocks) {
  const auto get = [](const vps::StateCatalog& catalog, std::string_view name) {
    return catalog.parameters()[static_cast<size_t>(catalog.FindParameter(name).value())];
  };
  const auto dense =
      *MakeCatalog(*LoadModel("tiny-llama"), vps::Fp32AdamKinds(), {.glu_block = 32});
  EXPECT_EQ(get(*dense, "layers.0.mlp.gate_up.weight").shape, (vps::Shape{16, 2, 32, 192}));
  EXPECT_EQ(get(*dense, "layers.0.mlp.gate_up.weight").split, vps::Split::Balanced(0));
  EXPECT_EQ(ParameterCount(*dense), ParameterCount(*CatalogOf("tiny-llama")));
  const ModelConfig moe = *LoadModel("tiny-moe");
  for (const bool stacks : {true, false}) {
    const auto catalog =
        *MakeCatalog(moe, vps::Bf16AdamKinds(), {.expert_stacks = stacks, .glu_block = 16});
    EXPECT_EQ(ParameterCount(*catalog), ParameterCount(*CatalogOf("tiny-moe")));
    const vps::Parameter p = get(*catalog, stacks ? "layers.0.mlp.experts.gate_up.weight"
                                                  : "layers.0.mlp.experts.7.gate_up.weight");
    EXPECT_EQ(p.shape, stacks ? (vps::Shape{8, 3, 2, 16, 96}) : (vps::Shape{3, 2, 16, 96}));
    EXPECT_EQ(p.split, vps::Split::Balanced(stacks ? 1 : 0));
    // A cut falls between blocks: position 0 of 2 has two of the three.
    const auto map = vps::LayoutShardMap::Make(catalog, *vps::ParseLayout("dp=2,etp=2,ep=1"));
    ASSERT_TRUE(map.ok()) << map.status().ToString();
    for (const vps::Shard& shard : (*map)->ShardsOf(0)) {
      if (catalog->parameter_of(shard.tensor).name == p.name) {
        EXPECT_EQ(shard.box.extent(stacks ? 1 : 0), 2);
      }
    }
  }
  EXPECT_THAT(MakeCatalog(moe, vps::Bf16AdamKinds(), {.glu_block = 32}).status().message(),
              ::testing::HasSubstr("gate_up: 48 columns are not a multiple of the 32 of a block"));
}

TEST(MakeCatalog, EveryOptionHasAShardMap) {
  using KvHeads = CatalogOptions::KvHeads;
  for (const char* preset : {"micro-llama", "tiny-moe", "micro-gpt"}) {
    for (const KvHeads kv_heads : {KvHeads::kBalanced, KvHeads::kGroups, KvHeads::kRows}) {
      for (const bool plain : {false, true}) {
        const auto catalog = *MakeCatalog(*LoadModel(preset), vps::Bf16AdamKinds(),
                                          {.kv_heads = kv_heads,
                                           .vocab_divisor = 32,
                                           .expert_stacks = plain,
                                           .concatenated_qkv = plain});
        for (const char* spec : {"tp=2,ep=4,dp=2,zero=1", "tp=1,cp=2,dp=3,zero=3,ep=2",
                                 "tp=2,dp=4,etp=2,ep=4,zero=2,zero_order=megatron",
                                 "tp=2,dp=3,zero=3,zero_order=forward-dim0"}) {
          const auto map = vps::LayoutShardMap::Make(catalog, *vps::ParseLayout(spec));
          EXPECT_TRUE(map.ok()) << preset << ": " << map.status().ToString();
        }
      }
    }
  }
}

TEST(CheckLayout, TellsWhatCanBePlannedOnly) {
  const ModelConfig config = *LoadModel("tiny-llama");
  for (const char* spec :
       {"cp=2", "pp=2,vpp=2", "dp=2,zero=2", "dp=2,zero=1,zero_order=megatron"}) {
    const vps::Layout layout = *vps::ParseLayout(spec);
    EXPECT_TRUE(CheckGeometry(config, layout).ok()) << spec;
    EXPECT_THAT(CheckLayout(config, layout).message(),
                ::testing::HasSubstr("can be planned but not trained here"));
  }
  const ModelConfig moe = *LoadModel("tiny-moe");
  EXPECT_EQ(CheckLayout(moe, *vps::ParseLayout("dp=2")).message(),
            "model tiny-moe: experts can be planned but not trained here");
  EXPECT_EQ(CheckGeometry(moe, *vps::ParseLayout("dp=9,ep=9")).message(),
            "ep=9: 8 experts do not split over 9 positions; right is ep=1 to ep=8");
  EXPECT_EQ(CheckGeometry(moe, *vps::ParseLayout("pp=3,vpp=2")).message(),
            "pp=3,vpp=2: 4 layers do not fill 6 chunks; right is pp * vpp of 1 to 4");
  EXPECT_EQ(CheckGeometry(moe, *vps::ParseLayout("vpp=33")).message(),
            "pp=1,vpp=33: 4 layers do not fill 33 chunks; right is pp * vpp of 1 to 4");
  for (const char* axis : {"ep", "etp"}) {
    EXPECT_EQ(CheckGeometry(config, *vps::ParseLayout(fmt::format("tp=2,{}=2", axis))).message(),
              fmt::format("{}=2: model tiny-llama has no experts; right is {}=1", axis, axis));
  }
  EXPECT_TRUE(CheckGeometry(*LoadModel("qwen3-30b-a3b"), *vps::ParseLayout("tp=8"),
                            {.kv_heads = CatalogOptions::KvHeads::kGroups})
                  .ok());
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
  EXPECT_EQ(error("pp=2,split=3+3"),
            "split=3+3 places 6 layers, the model has 7: layer 6 would be on no stage");
  ModelConfig narrow = config;
  narrow.ffn = 2;
  EXPECT_EQ(CheckLayout(narrow, *vps::ParseLayout("tp=3")).message(),
            "tp=3: ffn 2 and vocabulary 256 do not split over 3 positions; right is tp=1 to tp=2");
}

}  // namespace
}  // namespace dynatrain::models
