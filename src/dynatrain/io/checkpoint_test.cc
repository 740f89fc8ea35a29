#include "dynatrain/io/checkpoint.h"

#include <fstream>

#include "dynatrain/io/testing_checkpoint.h"

namespace dynatrain::io {
namespace {

using namespace testing_checkpoint;

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

  // The digest in it is of what a reader sees, which would be the last of two.
  std::ifstream file(path + "/checkpoint.json");
  std::string twice(std::istreambuf_iterator<char>(file), {});
  twice.insert(twice.find('{') + 1, "\"step\": 7,");
  std::ofstream(path + "/checkpoint.json", std::ios::trunc) << twice;
  EXPECT_EQ(ReadCheckpointInfo(path).status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(ReadCheckpointInfo(path).status().message(), HasSubstr("key 'step' is given twice"));
  for (const std::string text : {"", "{}", "{\"format\": 99}", "{\"format\": 2}", "[1"}) {
    std::ofstream(path + "/checkpoint.json", std::ios::trunc) << text;
    EXPECT_FALSE(ReadCheckpointInfo(path).ok()) << text;
  }
}

}  // namespace
}  // namespace dynatrain::io
