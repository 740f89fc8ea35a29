// The agent on real threads: ranks are threads over an in-memory store and the in-process
// transport.
#include "dynatrain/elastic/agent.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "dynatrain/base/log.h"
#include "dynatrain/elastic/local_groups.h"
#include "dynatrain/elastic/memory_store.h"
#include "dynatrain/elastic/sim_oracle.h"

namespace dynatrain::elastic {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using What = BoundaryResult::What;

// The reduction of a training step: waits for all ranks of a layout.
class Reducer {
 public:
  bool AllReady(int64_t epoch, int64_t step, size_t members, bool ready) {
    std::unique_lock lock(mutex_);
    Entry& entry = entries_[{epoch, step}];
    entry.ready = entry.ready && ready;
    ++entry.present;
    changed_.notify_all();
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return entry.present == members; }));
    return entry.ready;
  }

 private:
  struct Entry {
    size_t present = 0;
    bool ready = true;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int64_t, int64_t>, Entry> entries_;
};

struct Job {
  int32_t num_ranks = 4;
  std::string first;
  std::vector<std::string> switches;  // all are asked for one after the other
  bool retired_leave = false;         // a rank that a switch makes idle ends at once
  MemoryStore store;
  LocalGroupHub groups{
      {.rendezvous = true, .max_outstanding = 2, .max_message = INT64_MAX, .timing_seed = 0}};
  Reducer reducer;
  std::mutex mutex;
  std::vector<SwitchReport> reports;
  int64_t last_step = 0;
};

class RankThread final : public Host {
 public:
  RankThread(Job* job, RankId rank) : job_(*job), rank_(rank) {}

  void Run() {
    Start();
    Fill(0);
    bool go_on = true;
    while (go_on) go_on = agent_->current().active() ? Step() : Idle();
    agent_.reset();
  }

  Status CheckLayout(const vps::Layout&) override { return Status::Ok(); }
  Result<std::shared_ptr<void>> Prepare(const LayoutInstance&) override {
    return std::shared_ptr<void>();
  }
  std::string JobState() override { return fmt::format("{}", step_); }

 private:
  void Start() {
    auto instance = std::make_shared<LayoutInstance>();
    const auto map =
        vps::LayoutShardMap::Make(TinyCatalog(), *vps::ParseLayout(job_.first, job_.num_ranks));
    ASSERT_TRUE(map.ok()) << map.status().ToString();
    instance->map = *map;
    instance->rank = rank_;
    instance->state = *engine::StateBuffers::Allocate(**map, rank_, engine::Fill::kZero);
    factory_ = job_.groups.FactoryOf(rank_);
    SwitchOptions options;
    options.verify = engine::Verify::kFull;
    options.fill = engine::Fill::kNan;
    options.heartbeat = milliseconds(20);
    auto agent =
        SwitchAgent::Start({rank_,
                            job_.num_ranks,
                            TinyCatalog(),
                            {},
                            options,
                            this,
                            factory_.get(),
                            &MonotonicClock()},
                           *job_.store.Clone(), instance, [this](const SwitchReport& report) {
                             const std::lock_guard lock(job_.mutex);
                             job_.reports.push_back(report);
                           });
    ASSERT_TRUE(agent.ok()) << agent.status().ToString();
    agent_ = *std::move(agent);
  }

  bool Step() {
    LayoutInstance& instance = agent_->current();
    Check();
    Fill(++step_);
    const int64_t epoch = instance.epoch;
    const size_t members = instance.map->Ranks().size();
    const bool ready = agent_->ready();
    const bool all_ready = job_.reducer.AllReady(epoch, step_, members, ready);
    agent_->StepTook(1e-3);
    const auto result = agent_->AtStepBoundary(step_, all_ready);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    if (!result.ok()) return false;
    if (result->what == What::kCommitted && !Enter(*result)) return false;
    // All switches are done with: a few more steps, the same number everywhere.
    const auto last = static_cast<int64_t>(job_.switches.size());
    if (agent_->current().epoch == last && agent_->current().active()) {
      if (steps_after_last_++ == 6) {
        const std::lock_guard lock(job_.mutex);
        job_.last_step = step_;
        EXPECT_TRUE(EndJob(job_.store, "done").ok());
        return false;
      }
    }
    return true;
  }

  bool Idle() {
    const auto result = agent_->WaitWhileIdle();
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    if (!result.ok() || result->what == What::kJobEnded) return false;
    return result->what != What::kCommitted || Enter(*result);
  }

  bool Enter(const BoundaryResult& result) {
    if (!agent_->current().active()) {
      was_active_ = false;
      return !job_.retired_leave;
    }
    EXPECT_FALSE(result.job_state.empty());
    const int64_t told = std::atoll(result.job_state.c_str());
    if (step_ > 0 && was_active_) {
      EXPECT_EQ(told, step_);
    }
    step_ = told;
    Check();
    agent_->FirstStepStarts();
    return true;
  }

  void Fill(int64_t step) {
    LayoutInstance& instance = agent_->current();
    was_active_ = instance.active();
    VisitElements(instance, instance.map->ShardsOf(rank_), &instance.state,
                  [step](vps::TensorId tensor, int64_t index, std::byte* element) {
                    const uint32_t bits = Element(tensor, index, step);
                    std::memcpy(element, &bits, 4);
                  });
  }

  void Check() {
    LayoutInstance& instance = agent_->current();
    int wrong = 0;
    VisitElements(instance, instance.map->ShardsOf(rank_), &instance.state,
                  [&](vps::TensorId tensor, int64_t index, const std::byte* element) {
                    uint32_t bits = 0;
                    std::memcpy(&bits, element, 4);
                    wrong += bits != Element(tensor, index, step_);
                  });
    EXPECT_EQ(wrong, 0) << "rank " << rank_ << ", step " << step_ << ", epoch " << instance.epoch;
  }

  Job& job_;
  const RankId rank_;
  std::unique_ptr<GroupFactory> factory_;
  std::unique_ptr<SwitchAgent> agent_;
  int64_t step_ = 0;
  int64_t steps_after_last_ = 0;
  bool was_active_ = false;
};

void RunJob(Job* job) {
  InitLog("test", LogLevel::kError);
  for (const std::string& spec : job->switches)
    ASSERT_TRUE(RequestSwitch(job->store, spec, 0).ok());
  std::vector<std::unique_ptr<RankThread>> ranks;
  std::vector<std::thread> threads;
  for (RankId rank = 0; rank < job->num_ranks; ++rank) {
    ranks.push_back(std::make_unique<RankThread>(job, rank));
  }
  for (const auto& rank : ranks) threads.emplace_back([&rank] { rank->Run(); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Agent, GrowsShrinksAndReportsOnce) {
  Job job;
  job.first = "dp=2,zero=1";
  job.switches = {"dp=4,zero=1", "tp=2,pp=2,dp=1,split=2+1", "dp=1,ranks=3",
                  "tp=3,dp=1,zero=1,ranks=2+0+1"};
  RunJob(&job);
  ASSERT_EQ(job.reports.size(), 4u);
  std::ranges::sort(job.reports, {}, &SwitchReport::id);
  for (const SwitchReport& report : job.reports) {
    EXPECT_EQ(report.outcome, Outcome::kCommitted) << report.reason;
    EXPECT_EQ(report.digest_before, report.digest_after);
    EXPECT_NE(report.digest_before, 0u);
    EXPECT_EQ(report.replica_check, 0u);
    EXPECT_GT(report.step, 0);
    EXPECT_GT(report.pause_seconds, 0);
  }
  EXPECT_EQ(job.reports[1].from, "dp=4,zero=1");
  EXPECT_GT(job.reports[0].moved_bytes, 0);
}

// C22: what a switch makes goes with the layout; the store keeps requests and decisions only.
TEST(Agent, ManySwitchesLeaveNothingBehind) {
  Job job;
  job.first = "tp=2,dp=2";
  for (int i = 0; i < 10; ++i) {
    job.switches.push_back("dp=4,zero=1");
    job.switches.push_back("tp=2,dp=2");
  }
  RunJob(&job);
  EXPECT_EQ(job.groups.live_groups(), 0);
  EXPECT_EQ(job.reports.size(), 20u);
  for (const std::string& key : job.store.Keys()) {
    EXPECT_TRUE(key == "job/end" || key == "switch/last_id" || key.ends_with("/request") ||
                key.ends_with("/decision"))
        << key << " is left";
  }
}

// C27: retiring ranks end as soon as they may.
TEST(Agent, RetiringRanksMayLeaveAtOnce) {
  for (int round = 0; round < 10; ++round) {
    Job job;
    job.first = "dp=4,zero=1";
    job.switches = {"dp=2,zero=1,ranks=1+2"};
    job.retired_leave = true;
    RunJob(&job);
    ASSERT_EQ(job.reports.size(), 1u);
    EXPECT_EQ(job.reports[0].outcome, Outcome::kCommitted) << job.reports[0].reason;
  }
}

// A rank that leaves calls off what it was preparing.
TEST(Agent, StopsInBoundedTimeWithASwitchUnderWay) {
  InitLog("test", LogLevel::kError);
  Job job;
  job.first = "dp=1";
  const auto map = vps::LayoutShardMap::Make(TinyCatalog(), *vps::ParseLayout("dp=1", 2));
  auto instance = std::make_shared<LayoutInstance>();
  instance->map = *map;
  instance->state = *engine::StateBuffers::Allocate(**map, 0, engine::Fill::kZero);
  RankThread host(&job, 0);
  const auto factory = job.groups.FactoryOf(0);
  SwitchOptions options;
  options.heartbeat = milliseconds(5);
  options.report_timeout = milliseconds(50);
  auto agent = SwitchAgent::Start(
      {0, 2, TinyCatalog(), {}, options, &host, factory.get(), &MonotonicClock()},
      *job.store.Clone(), instance, nullptr);
  ASSERT_TRUE(agent.ok());
  // Rank 1 never comes, so the switch stays in its preparation.
  ASSERT_TRUE(RequestSwitch(job.store, "dp=2", 0).ok());
  ASSERT_TRUE(job.store.Wait(SwitchKey(1, "planned", 0), seconds(60)).ok());
  agent->reset();
  EXPECT_FALSE(Decision::FromText(**job.store.TryGet(SwitchKey(1, "decision"))).commit);
}

TEST(Agent, ALostStoreEndsTheJobWithAnError) {
  InitLog("test", LogLevel::kError);
  Job job;
  const auto map = vps::LayoutShardMap::Make(TinyCatalog(), *vps::ParseLayout("dp=1,ranks=1", 2));
  auto instance = std::make_shared<LayoutInstance>();
  instance->map = *map;
  RankThread host(&job, 0);
  const auto factory = job.groups.FactoryOf(0);
  SwitchOptions options;
  options.heartbeat = milliseconds(5);
  auto agent = SwitchAgent::Start(
      {0, 2, TinyCatalog(), {}, options, &host, factory.get(), &MonotonicClock()},
      *job.store.Clone(), instance, nullptr);
  ASSERT_TRUE(agent.ok());
  job.store.Disconnect();
  const auto result = (*agent)->WaitWhileIdle();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace dynatrain::elastic
