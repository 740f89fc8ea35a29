// Folders as transformers writes them (scripts/make_golden.py), read and written. golden_test shows
// that the same weights give transformers' logits.
#include "dynatrain/trainer/hugging_face.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include <c10/util/BFloat16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/program.h"
#include "dynatrain/io/safetensors.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/trainer/testing_ranks.h"

namespace dynatrain::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string TestData(const std::string& name) {
  return std::string(DYNATRAIN_TESTDATA) + "/" + name;
}

std::vector<float> Floats(const io::TensorView& view) {
  std::vector<float> values(view.data.size() / sizeof(float));
  std::memcpy(values.data(), view.data.data(), view.data.size());
  return values;
}

// All tensors of all files of a folder, by their names.
std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> AllTensors(
    const std::string& folder) {
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> all;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = io::SafetensorsFile::Open(entry.path());
    for (const io::TensorView& view : file->tensors()) all[view.name] = {view.shape, Floats(view)};
  }
  return all;
}

class HuggingFaceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / fmt::format("hugging-face-{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static elastic::LayoutInstance Instance(const models::ModelConfig& config,
                                          const std::vector<vps::KindSpec>& kinds) {
    elastic::LayoutInstance instance;
    instance.map =
        *vps::LayoutShardMap::Make(*models::MakeCatalog(config, kinds), *vps::ParseLayout("dp=1"));
    instance.state = *engine::StateBuffers::Allocate(*instance.map, 0, engine::Fill::kNan);
    return instance;
  }

  static Status Read(const std::string& folder, const models::ModelConfig& config,
                     elastic::LayoutInstance* instance) {
    DT_ASSIGN_OR_RETURN(const auto reader, HuggingFaceReader::Open(folder, config, instance->map));
    for (int i = 0; i < instance->state.num_buffers(); ++i) {
      const ConstByteSpan bytes = reader->Buffer(i);
      const ByteSpan to = instance->state.bytes(i);
      if (bytes.size() != to.size()) return Internal("buffer {} has {} bytes", i, bytes.size());
      std::memcpy(to.data(), bytes.data(), bytes.size());
    }
    return {};
  }
  static Status Write(const std::string& folder, const models::ModelConfig& config,
                      const elastic::LayoutInstance& instance, vps::DType dtype) {
    const auto shards = instance.map->ShardsOf(0);
    const auto buffers = instance.map->BuffersOf(0);
    const auto read = [&](vps::TensorId tensor, const vps::Box& box, ByteSpan run) -> Status {
      DT_ASSIGN_OR_RETURN(const engine::Region region,
                          engine::RegionOf({tensor, box}, shards, buffers));
      engine::Pack(instance.state.bytes(region.buffer), region, run);
      return {};
    };
    return WriteHuggingFace(folder, config, instance.map->catalog(), read, dtype);
  }

  fs::path folder_;
};

TEST_P(HuggingFaceTest, WhatTransformersWroteIsReadAndWrittenBackBitForBit) {
  const std::string source = TestData(std::string("hugging_face_") + GetParam());
  const auto golden =
      io::SafetensorsFile::Open(TestData(std::string("golden_") + GetParam() + ".safetensors"));
  const models::ModelConfig config = *models::LoadModel(source);
  for (const bool bf16 : {false, true}) {
    auto instance = Instance(config, bf16 ? vps::Bf16AdamKinds() : vps::Fp32AdamKinds());
    const Status read = Read(source, config, &instance);
    ASSERT_TRUE(read.ok()) << read.ToString();
    testing::Tensors exact, rounded, moments;
    exact.AddState(instance, bf16 ? vps::Kind::kMaster : vps::Kind::kParam);
    rounded.AddState(instance, vps::Kind::kParam);
    moments.AddState(instance, vps::Kind::kExpAvgSq);
    EXPECT_EQ(exact.Faults() + rounded.Faults(), "");
    EXPECT_EQ(exact.values().size(), instance.map->catalog().parameters().size());
    for (const auto& [name, values] : exact.values()) {
      const std::vector<float> expected = Floats(*golden->Find("weights/" + name));
      EXPECT_EQ(values, expected) << name;
      for (size_t i = 0; bf16 && i < expected.size(); ++i) {
        ASSERT_EQ(rounded.values().at(name)[i], static_cast<float>(c10::BFloat16(expected[i])));
      }
      EXPECT_EQ(moments.values().at(name), std::vector<float>(expected.size(), 0.0f));
    }
    const std::string written = folder_ / (bf16 ? "bf16" : "fp32");
    const Status wrote = Write(written, config, instance, vps::DType::kF32);
    ASSERT_TRUE(wrote.ok()) << wrote.ToString();
    EXPECT_EQ(AllTensors(written), AllTensors(source));
    EXPECT_EQ(*models::LoadModel(written), config);
  }
}

TEST_P(HuggingFaceTest, Bf16FilesHoldTheRoundedWeights) {
  const std::string source = TestData(std::string("hugging_face_") + GetParam());
  const models::ModelConfig config = *models::LoadModel(source);
  auto instance = Instance(config, vps::Fp32AdamKinds());
  ASSERT_TRUE(Read(source, config, &instance).ok());
  ASSERT_TRUE(Write(folder_ / "half", config, instance, vps::DType::kBF16).ok());
  auto again = Instance(config, vps::Bf16AdamKinds());
  ASSERT_TRUE(Read(folder_ / "half", config, &again).ok());
  testing::Tensors from, to;
  from.AddState(instance, vps::Kind::kParam);
  to.AddState(again, vps::Kind::kMaster);
  for (const auto& [name, values] : from.values()) {
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(to.values().at(name)[i], static_cast<float>(c10::BFloat16(values[i]))) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, HuggingFaceTest, ::testing::Values("untied", "tied"));

class HuggingFaceErrorTest : public HuggingFaceTest {};

TEST_P(HuggingFaceErrorTest, WhatDoesNotFitIsNamed) {
  const fs::path folder = folder_ / "broken";
  fs::copy(TestData("hugging_face_tied"), folder, fs::copy_options::recursive);
  const models::ModelConfig config = *models::LoadModel(folder);
  auto instance = Instance(config, vps::Fp32AdamKinds());
  const auto read = [&](const models::ModelConfig& wanted) {
    return Read(folder, wanted, &instance).message();
  };
  EXPECT_EQ(read(config), "");
  models::ModelConfig other = config;
  other.layers = 2;
  EXPECT_THAT(read(other), HasSubstr("the model has no tensor model.layers.2."));
  other = config;
  other.tied = false;
  EXPECT_THAT(read(other), HasSubstr("there is no tensor lm_head.weight"));
  other = config;
  other.ffn = 30;
  EXPECT_THAT(read(other),
              HasSubstr("mlp.gate_proj.weight has shape [29, 24], its config.json says [30, 24]"));
  other = config;
  other.experts = 4;
  EXPECT_NE(read(other), "");
  fs::resize_file(folder / "model.safetensors", 1000);
  EXPECT_THAT(read(config), HasSubstr("model.safetensors"));
  std::ofstream(folder / "model.safetensors.index.json") << R"({"weight_map": 3})";
  EXPECT_THAT(read(config), HasSubstr("index.json"));
}

INSTANTIATE_TEST_SUITE_P(Once, HuggingFaceErrorTest, ::testing::Values("tied"));

}  // namespace
}  // namespace dynatrain::trainer
