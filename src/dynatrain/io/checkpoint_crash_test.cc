// Checkpoints under damage, crashes and full disks.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "dynatrain/base/random.h"
#include "dynatrain/io/testing_checkpoint.h"

namespace dynatrain::io {
namespace {

using namespace testing_checkpoint;

std::vector<fs::path> FilesOf(const std::string& path) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) files.push_back(entry);
  std::ranges::sort(files);
  return files;
}

void FlipByte(const fs::path& path, int64_t at, int mask) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ mask));
}

TEST_F(CheckpointTest, AFlippedByteIsRefusedOrChangesNothingThatIsLoaded) {
  const std::string path = Save("tp=2,dp=2,zero=1", 3);
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Random random(seed);
  int refused = 0;
  for (const fs::path& file : FilesOf(path)) {
    const auto length = static_cast<int64_t>(fs::file_size(file));
    for (int round = 0; round < 40; ++round) {
      const int64_t at = random.Between(0, length - 1);
      const int mask = 1 << random.Between(0, 7);
      FlipByte(file, at, mask);
      if (LoadAll(path, "pp=2,dp=1").ok()) {
        ExpectLoads(path, "pp=2,dp=1");
        EXPECT_NE(file.filename(), "checkpoint.json") << at;
      } else {
        ++refused;
      }
      FlipByte(file, at, mask);
    }
  }
  EXPECT_GT(refused, 100);
  ExpectLoads(path, "pp=2,dp=1");
}

TEST_F(CheckpointTest, AFlippedElementIsNamed) {
  const std::string path = Save("dp=1", 3);
  const fs::path victim = fs::path(path) / "rank-00000.safetensors";
  FlipByte(victim, static_cast<int64_t>(fs::file_size(victim)) - 3, 1);
  const Status loaded = LoadAll(path, "tp=2");
  EXPECT_EQ(loaded.code(), StatusCode::kDataLoss);
  EXPECT_THAT(loaded.message(), HasSubstr("rank-00000.safetensors: "));
  EXPECT_THAT(loaded.message(), HasSubstr("has changed since it was saved"));
}

TEST_F(CheckpointTest, FilesOfAnotherCheckpointAreRefused) {
  const std::string old = Save("tp=2", 1);
  const CheckpointInfo info = *ReadCheckpointInfo(old);
  std::ofstream(fs::path(old) / "rank-00001.safetensors", std::ios::app) << 'x';
  EXPECT_THAT(CheckFiles(old, info).message(), HasSubstr("rank-00001.safetensors has"));
  fs::remove(fs::path(old) / "rank-00001.safetensors");
  EXPECT_EQ(CheckFiles(old, info).code(), StatusCode::kNotFound);
}

TEST_F(CheckpointTest, TheDigestIsTheSameInEveryLayout) {
  Save("tp=3,pp=2,split=4+1", 1);
  Save("dp=3,zero=1", 2);
  EXPECT_EQ(ReadCheckpointInfo(directory_ / "step-00000001")->digest,
            ReadCheckpointInfo(directory_ / "step-00000002")->digest);
  EXPECT_NE(ReadCheckpointInfo(directory_ / "step-00000001")->digest, 0u);
}

TEST_F(CheckpointTest, ReplicasThatDifferAreNotSaved) {
  const auto map = Map("dp=2");
  std::vector<SavedShards> parts;
  for (const RankId rank : map->Ranks()) {
    engine::StateBuffers state = *engine::StateBuffers::Allocate(*map, rank, engine::Fill::kZero);
    state.bytes(0)[0] = static_cast<std::byte>(rank);
    parts.push_back(*SaveShards(directory_, 1, *map, rank, state));
  }
  CheckpointInfo info = Info("dp=2", 1);
  const Result<std::string> saved = FinishCheckpoint(directory_, &info, parts);
  EXPECT_EQ(saved.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(saved.status().message(), HasSubstr("replicas"));
  EXPECT_EQ(FindCheckpoint(directory_).status().code(), StatusCode::kNotFound);
}

TEST_F(CheckpointTest, WhatACrashLeftIsFoundAndRepaired) {
  const std::string path = Save("dp=2,zero=1", 4);
  // Between the two renames of a second save of the step.
  fs::rename(path, path + ".replaced");
  fs::create_directories(path + ".partial");
  std::ofstream(path + ".partial/rank-00000.safetensors") << "half";
  fs::create_directories(directory_ / "mine");
  fs::create_directories(directory_ / "step-4.partial");  // not a name of ours
  EXPECT_EQ(*FindCheckpoint(directory_), path + ".replaced");
  ExpectLoads(*FindCheckpoint(directory_), "tp=2");
  const std::vector<std::string> done = *RepairCheckpoints(directory_);
  EXPECT_EQ(done.size(), 2u) << ::testing::PrintToString(done);
  EXPECT_EQ(*FindCheckpoint(directory_), path);
  EXPECT_FALSE(fs::exists(path + ".partial"));
  EXPECT_TRUE(fs::exists(directory_ / "mine") && fs::exists(directory_ / "step-4.partial"));
  EXPECT_TRUE(RepairCheckpoints(directory_)->empty());
  // An old one beside its replacement goes.
  fs::copy(path, path + ".replaced", fs::copy_options::recursive);
  EXPECT_EQ(*FindCheckpoint(directory_), path);
  EXPECT_EQ(RepairCheckpoints(directory_)->size(), 1u);
  EXPECT_FALSE(fs::exists(path + ".replaced"));
  EXPECT_TRUE(RepairCheckpoints(directory_ / "nowhere")->empty());
}

TEST_F(CheckpointTest, FilesOfAnEarlierCrashDoNotBecomePartOfACheckpoint) {
  fs::create_directories(directory_ / "step-00000005.partial");
  std::ofstream(directory_ / "step-00000005.partial" / "rank-00007.safetensors") << "old";
  std::ofstream(directory_ / "step-00000005.partial" / "rank-00000.safetensors.tmp") << "old";
  const std::string path = Save("tp=2", 5);
  EXPECT_EQ(FilesOf(path).size(), 3u);
  ExpectLoads(path, "dp=1");
}

TEST_F(CheckpointTest, AFullDiskIsAnErrorThatLeavesTheOldOneWhole) {
  const std::string path = Save("dp=1", 6);
  // Writes to /dev/full fail as on a full disk.
  fs::create_directories(directory_ / "step-00000007.partial");
  fs::create_symlink("/dev/full",
                     directory_ / "step-00000007.partial" / "rank-00000.safetensors.tmp");
  const auto parts = SaveParts("dp=1", 7);
  EXPECT_EQ(parts.status().code(), StatusCode::kResourceExhausted) << parts.status().ToString();
  EXPECT_THAT(parts.status().message(), HasSubstr("step-00000007.partial/rank-00000.safetensors"));
  DropPartial(directory_, 7);
  EXPECT_FALSE(fs::exists(directory_ / "step-00000007.partial"));
  EXPECT_EQ(*FindCheckpoint(directory_), path);
  ExpectLoads(path, "tp=2");
}

// A process that saves one step after the other, some of them twice, is killed at any moment.
TEST_F(CheckpointTest, AKillAtAnyMomentLeavesACompleteCheckpoint) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Random random(seed);
  int64_t step = 1;
  Save("tp=2", step);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t s = step; true; ++s) {
        Save("dp=1", s);
        Save("tp=2,dp=2,zero=1", s);
      }
    }
    ASSERT_GT(child, 0);
    std::this_thread::sleep_for(std::chrono::microseconds(random.Between(0, 30000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));

    const Result<std::string> before = FindCheckpoint(directory_);
    ASSERT_TRUE(before.ok()) << before.status().ToString();
    ExpectLoads(*before, "pp=2");
    ASSERT_TRUE(RepairCheckpoints(directory_).ok());
    const Result<std::string> found = FindCheckpoint(directory_);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    ExpectLoads(*found, "pp=2");
    const int64_t newest = ReadCheckpointInfo(*found)->step;
    EXPECT_GE(newest, step) << "a kill takes nothing back";
    step = newest;
  }
}

}  // namespace
}  // namespace dynatrain::io
