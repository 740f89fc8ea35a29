// Saving and loading by ranks that are threads: what is on disk afterwards, and in the store.
#include "dynatrain/apps/rank_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/elastic/memory_store.h"
#include "dynatrain/io/checkpoint.h"

namespace dynatrain::apps {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

class RankCheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / fmt::format("rank-checkpoint-{}", ::getpid());
    fs::create_directories(folder_);
    std::ofstream(folder_ / "text.txt") << std::string(4000, 'a');
    config_.model = "micro-llama";
    config_.data = folder_ / "text.txt";
    config_.layout = "dp=3,zero=1";
    config_.num_ranks = 3;
    config_.steps = 10;
    config_.global_batch = 3;
    config_.seq = 32;
    config_.save = folder_ / "store";
    const Result<JobSetup> setup = JobSetup::Make(config_);
    ASSERT_TRUE(setup.ok()) << setup.status().ToString();
    setup_ = *setup;
    null_fd_ = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  }
  void TearDown() override {
    ::close(null_fd_);
    fs::remove_all(folder_);
  }

  // Calls body(context, instance) as each rank of the layout, on a thread of its own.
  template <class Body>
  void OnAllRanks(const std::string& spec, const Body& body) {
    const auto map = *vps::LayoutShardMap::Make(setup_.catalog, *setup_.CheckedLayout(spec));
    std::vector<std::thread> threads;
    for (const RankId rank : map->Ranks()) {
      threads.emplace_back([&, rank] {
        EventWriter events(null_fd_);
        const auto store = *store_.Clone();
        elastic::LayoutInstance instance;
        instance.rank = rank;
        instance.map = map;
        instance.state = *engine::StateBuffers::Allocate(*map, rank, engine::Fill::kZero);
        body(CheckpointContext{rank, &config_, &setup_, store.get(), &events}, &instance);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  fs::path folder_;
  JobConfig config_;
  JobSetup setup_;
  elastic::MemoryStore store_;
  int null_fd_ = -1;
};

TEST_F(RankCheckpointTest, NeitherSavingNorLoadingLeavesAnythingInTheStore) {
  for (const std::string spec : {"dp=3,zero=1", "dp=1,ranks=2", "tp=2,dp=1"}) {
    for (int64_t step = 1; step <= 3; ++step) {
      OnAllRanks(spec, [step](const CheckpointContext& context, elastic::LayoutInstance* instance) {
        const Result<bool> saved = SaveCheckpoint(context, *instance, step, "job", "periodic");
        ASSERT_TRUE(saved.ok()) << saved.status().ToString();
        EXPECT_TRUE(*saved);
      });
      EXPECT_THAT(store_.Keys(), IsEmpty()) << spec << " step " << step;
    }
  }
  config_.resume = *io::FindCheckpoint(config_.save);
  OnAllRanks("dp=3", [](const CheckpointContext& context, elastic::LayoutInstance* instance) {
    const Result<std::string> job_state = LoadCheckpoint(context, instance);
    ASSERT_TRUE(job_state.ok()) << job_state.status().ToString();
    EXPECT_EQ(*job_state, "job");
  });
  EXPECT_THAT(store_.Keys(), IsEmpty());
}

TEST_F(RankCheckpointTest, ASaveThatFailsLeavesNothingEither) {
  std::ofstream(folder_ / "store") << "a file where the directory should be";
  OnAllRanks("dp=3,zero=1",
             [](const CheckpointContext& context, elastic::LayoutInstance* instance) {
               const Result<bool> saved = SaveCheckpoint(context, *instance, 1, "job", "periodic");
               ASSERT_TRUE(saved.ok()) << saved.status().ToString();
               EXPECT_FALSE(*saved);
             });
  EXPECT_THAT(store_.Keys(), IsEmpty());
}

}  // namespace
}  // namespace dynatrain::apps
