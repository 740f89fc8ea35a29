#include "dynatrain/io/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "dynatrain/base/hash.h"

namespace dynatrain::io {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::shared_ptr<const vps::StateCatalog> MakeCatalog(int64_t vocab = 11) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  const auto add = [&](std::string name, vps::Shape shape, vps::Split split,
                       std::vector<vps::Home> homes) {
    vps::Parameter parameter;
    parameter.name = std::move(name);
    parameter.shape = shape;
    parameter.split = std::move(split);
    parameter.homes = std::move(homes);
    parameter.kinds = vps::Fp32AdamKinds();
    DT_CHECK(catalog->Add(std::move(parameter)).ok());
  };
  add("embedding", {vocab, 3}, vps::Split::Balanced(0),
      {vps::Home::Embedding(), vps::Home::Head()});
  for (int32_t layer = 0; layer < 5; ++layer) {
    add(fmt::format("layers.{}.norm", layer), {7}, vps::Split::None(), {vps::Home::Layer(layer)});
    add(fmt::format("layers.{}.up", layer), {2, 5, 3}, vps::Split::Balanced(1),
        {vps::Home::Layer(layer)});
    add(fmt::format("layers.{}.down", layer), {3, 5}, vps::Split::Balanced(1),
        {vps::Home::Layer(layer)});
  }
  return catalog;
}

// The number at a logical element: different everywhere.
float NumberAt(vps::TensorId tensor, int64_t index) {
  return static_cast<float>(Hasher().Add(tensor).Add(index).hash() >> 44) +
         0.25f * static_cast<float>(tensor);
}

// Calls visit(element in memory, expected number) for each element of each shard, index by index.
template <class Visit>
void ForEachElement(const vps::ShardMap& map, RankId rank, engine::StateBuffers& state,
                    const Visit& visit) {
  for (const vps::Shard& shard : map.ShardsOf(rank)) {
    const vps::Box whole = vps::Box::Whole(map.catalog().shape_of(shard.tensor));
    const ByteSpan bytes = state.bytes(shard.buffer);
    for (int64_t i = 0; i < whole.elems(); ++i) {
      vps::Coords index = vps::Coords::Filled(whole.dims(), 0);
      for (int64_t rest = i, axis = whole.dims() - 1; axis >= 0; --axis) {
        index[static_cast<int>(axis)] = rest % whole.extent(static_cast<int>(axis));
        rest /= whole.extent(static_cast<int>(axis));
      }
      if (!shard.box.Contains(index)) continue;
      int64_t at = shard.offset;
      for (int axis = 0; axis < whole.dims(); ++axis)
        at += (index[axis] - shard.box.lo()[axis]) * shard.strides[axis];
      visit(reinterpret_cast<float*>(bytes.data())[at], NumberAt(shard.tensor, i));
    }
  }
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) /
                 fmt::format("checkpoint-{}-{}", ::getpid(),
                             testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::shared_ptr<const vps::LayoutShardMap> Map(const std::string& spec) {
    return *vps::LayoutShardMap::Make(catalog_, *vps::ParseLayout(spec));
  }

  std::string Save(const std::string& spec, int64_t step, const std::string& job_state = "job") {
    const auto map = Map(spec);
    for (const RankId rank : map->Ranks()) {
      engine::StateBuffers state = *engine::StateBuffers::Allocate(*map, rank, engine::Fill::kZero);
      ForEachElement(*map, rank, state, [](float& element, float number) { element = number; });
      const Status saved = SaveShards(directory_, step, *map, rank, state);
      DT_CHECK_MSG(saved.ok(), saved.ToString());
    }
    return *FinishCheckpoint(directory_, {step, map->layout(), job_state, catalog_->Fingerprint()});
  }

  void ExpectLoads(const std::string& path, const std::string& spec) {
    const Result<CheckpointInfo> info = ReadCheckpointInfo(path);
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    const auto map = Map(spec);
    for (const RankId rank : map->Ranks()) {
      engine::StateBuffers state = *engine::StateBuffers::Allocate(*map, rank, engine::Fill::kNan);
      const Status loaded = LoadState(path, *info, *map, rank, &state);
      ASSERT_TRUE(loaded.ok()) << spec << " rank " << rank << ": " << loaded.ToString();
      ForEachElement(*map, rank, state,
                     [&](float& element, float number) { ASSERT_EQ(element, number) << spec; });
    }
  }

  fs::path directory_;
  std::shared_ptr<const vps::StateCatalog> catalog_ = MakeCatalog();
};

TEST_F(CheckpointTest, LoadsInEveryOtherLayout) {
  const std::vector<std::string> specs = {
      "dp=1",
      "dp=3,zero=1",
      "tp=2,dp=2,zero=1",
      "tp=3,pp=2,split=4+1",
      "pp=5,dp=2,zero=1,zero_order=reverse-contiguous-start:4-end:16",
      "tp=2,pp=2,dp=2,zero=1,zero_order=forward-bucketed:20,ranks=7+1+3+5+0+2+4+6"};
  int64_t step = 0;
  for (const std::string& from : specs) {
    const std::string path = Save(from, ++step);
    for (const std::string& to : specs) ExpectLoads(path, to);
  }
}

TEST_F(CheckpointTest, ReplicasAreWrittenOnce) {
  Save("dp=4", 1);
  EXPECT_TRUE(fs::exists(directory_ / "step-00000001" / "rank-00000.safetensors"));
  EXPECT_FALSE(fs::exists(directory_ / "step-00000001" / "rank-00001.safetensors"));
}

TEST_F(CheckpointTest, TheNewestCompleteOneIsFoundAndASecondSaveReplaces) {
  EXPECT_EQ(FindCheckpoint(directory_).status().code(), StatusCode::kNotFound);
  Save("dp=1", 9);
  const std::string newest = Save("dp=2,zero=1", 10, std::string("new\0job\xff", 8));
  fs::create_directories(directory_ / "step-00000011.partial");
  fs::create_directories(directory_ / "step-00000012");  // without its checkpoint.json
  EXPECT_EQ(*FindCheckpoint(directory_), newest);
  EXPECT_EQ(*FindCheckpoint(newest), newest);
  EXPECT_EQ(ReadCheckpointInfo(newest)->job_state, std::string("new\0job\xff", 8));
  EXPECT_EQ(ReadCheckpointInfo(newest)->step, 10);
  EXPECT_EQ(Save("pp=2", 10), newest);
  EXPECT_EQ(ReadCheckpointInfo(newest)->layout.pp, 2);
  ExpectLoads(newest, "dp=3,zero=1");
}

TEST_F(CheckpointTest, DamageAndForeignStateAreNamed) {
  const std::string path = Save("tp=2", 1);
  const CheckpointInfo info = *ReadCheckpointInfo(path);
  engine::StateBuffers state =
      *engine::StateBuffers::Allocate(*Map("dp=1"), 0, engine::Fill::kZero);

  const auto other = *vps::LayoutShardMap::Make(MakeCatalog(12), *vps::ParseLayout("dp=1"));
  EXPECT_THAT(LoadState(path, info, *other, 0, &state).message(), HasSubstr("another model"));

  const fs::path victim = fs::path(path) / "rank-00001.safetensors";
  fs::resize_file(victim, fs::file_size(victim) - 1);
  const Status short_file = LoadState(path, info, *Map("dp=1"), 0, &state);
  EXPECT_EQ(short_file.code(), StatusCode::kDataLoss);
  EXPECT_THAT(short_file.message(), HasSubstr("rank-00001.safetensors"));
  fs::remove(victim);
  EXPECT_EQ(LoadState(path, info, *Map("dp=1"), 0, &state).code(), StatusCode::kNotFound);

  for (const std::string text : {"", "{}", "{\"format\": 99}", "[1"}) {
    std::ofstream(path + "/checkpoint.json", std::ios::trunc) << text;
    EXPECT_FALSE(ReadCheckpointInfo(path).ok()) << text;
  }
}

}  // namespace
}  // namespace dynatrain::io
