#include "dynatrain/models/scale.h"

#include <gtest/gtest.h>

#include "dynatrain/models/catalog.h"

namespace dynatrain::models {
namespace {

ByteCount BytesOf(const ModelConfig& config) {
  const auto catalog = MakeCatalog(config, vps::Bf16AdamKinds());
  EXPECT_TRUE(catalog.ok()) << catalog.status().ToString();
  return (*catalog)->total_bytes();
}

TEST(ScaledToFit, EveryPresetFitsAndKeepsItsLayouts) {
  for (const std::string& name : PresetNames()) {
    SCOPED_TRACE(name);
    const ModelConfig whole = *LoadModel(name);
    constexpr ByteCount kMost = ByteCount{3} << 30;
    const auto narrow = ScaledToFit(whole, vps::Bf16AdamKinds(), kMost);
    ASSERT_TRUE(narrow.ok()) << narrow.status().ToString();
    EXPECT_LE(BytesOf(*narrow), kMost);
    if (BytesOf(whole) <= kMost) {
      EXPECT_EQ(*narrow, whole);
      continue;
    }
    EXPECT_GT(BytesOf(*narrow), kMost / 4) << "much narrower than it had to be";
    EXPECT_EQ(narrow->layers, whole.layers);
    EXPECT_EQ(narrow->heads, whole.heads);
    EXPECT_EQ(narrow->kv_heads, whole.kv_heads);
    EXPECT_EQ(narrow->experts, whole.experts);
    for (const char* spec : {"tp=4,pp=4,dp=2,zero=1", "tp=2,pp=3,dp=2"}) {
      EXPECT_TRUE(CheckGeometry(*narrow, *vps::ParseLayout(spec)).ok()) << spec;
    }
  }
}

TEST(ScaledToFit, RefusesWhatDoesNotFitAtItsNarrowest) {
  const auto narrow = ScaledToFit(*LoadModel("llama2-7b"), vps::Bf16AdamKinds(), 1000);
  EXPECT_EQ(narrow.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(narrow.status().message().find("1000"), std::string::npos) << narrow.status().message();
}

}  // namespace
}  // namespace dynatrain::models
