// For tests: a small state whose every element has a number of its own, saved and loaded.
#ifndef DYNATRAIN_IO_TESTING_CHECKPOINT_H_
#define DYNATRAIN_IO_TESTING_CHECKPOINT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dynatrain/base/hash.h"
#include "dynatrain/io/checkpoint.h"

namespace dynatrain::io::testing_checkpoint {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

inline std::shared_ptr<const vps::StateCatalog> MakeCatalog(int64_t vocab = 11) {
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
inline float NumberAt(vps::TensorId tensor, int64_t index) {
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

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(::testing::TempDir()) /
                 fmt::format("checkpoint-{}-{}", ::getpid(),
                             ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::shared_ptr<const vps::LayoutShardMap> Map(const std::string& spec) {
    return *vps::LayoutShardMap::Make(catalog_, *vps::ParseLayout(spec));
  }

  // What all ranks of the layout write of `step`.
  Result<std::vector<SavedShards>> SaveParts(const std::string& spec, int64_t step) {
    const auto map = Map(spec);
    std::vector<SavedShards> parts;
    for (const RankId rank : map->Ranks()) {
      engine::StateBuffers state = *engine::StateBuffers::Allocate(*map, rank, engine::Fill::kZero);
      ForEachElement(*map, rank, state, [](float& element, float number) { element = number; });
      DT_ASSIGN_OR_RETURN(SavedShards part, SaveShards(directory_, step, *map, rank, state));
      parts.push_back(*SavedShards::FromJson(part.ToJson()));
    }
    return parts;
  }

  CheckpointInfo Info(const std::string& spec, int64_t step, const std::string& job_state = "job") {
    return {.step = step,
            .layout = Map(spec)->layout(),
            .job_state = job_state,
            .catalog_fingerprint = catalog_->Fingerprint(),
            .dtype = "fp32",
            .run = {{"seed", "1"}},
            .digest = 0,
            .files = {}};
  }

  std::string Save(const std::string& spec, int64_t step, const std::string& job_state = "job") {
    CheckpointInfo info = Info(spec, step, job_state);
    return *FinishCheckpoint(directory_, &info, *SaveParts(spec, step));
  }

  // Loads the state of every rank of `spec`; elements may be anything.
  Status LoadAll(const std::string& path, const std::string& spec) {
    DT_ASSIGN_OR_RETURN(const CheckpointInfo info, ReadCheckpointInfo(path));
    DT_RETURN_IF_ERROR(CheckFiles(path, info));
    const auto map = Map(spec);
    for (const RankId rank : map->Ranks()) {
      engine::StateBuffers state = *engine::StateBuffers::Allocate(*map, rank, engine::Fill::kNan);
      DT_RETURN_IF_ERROR(LoadState(path, info, *map, rank, &state));
    }
    return {};
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

}  // namespace dynatrain::io::testing_checkpoint

#endif  // DYNATRAIN_IO_TESTING_CHECKPOINT_H_
