// A launcher that is not the job's first.
#include <chrono>
#include <optional>
#include <set>

#include "dynatrain/apps/job_setup.h"
#include "dynatrain/apps/launcher.h"
#include "dynatrain/apps/leaving.h"
#include "dynatrain/apps/log_directory.h"
#include "dynatrain/apps/memory_need.h"
#include "dynatrain/apps/signals.h"
#include "dynatrain/base/json.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/bridge/fence.h"

namespace dynatrain::apps {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(100);
constexpr Duration kTerminateGrace = std::chrono::seconds(2);
constexpr Duration kStopReminder = std::chrono::seconds(1);
// How long to wait for what the first launcher makes of the loss of a rank here.
constexpr Duration kVerdictTimeout = std::chrono::seconds(5);

constexpr char kFirstIsLost[] = "the first launcher or its store is lost";

// The event that stands for the end of a rank here.
std::string ExitLine(const Children::Exit& exit) {
  return DumpJson({{"event", "exit"}, {"pid", exit.pid}, {"wait_status", exit.wait_status}});
}

Status EndedByFirst(const std::string& why) {
  return Aborted("the first launcher ended the job: {}", why);
}

class FurtherJob {
 public:
  FurtherJob(const NodeOptions& node, elastic::Store* store) : node_(node), link_(store, node) {}

  // To the end of this node's ranks, logs of which go to `logs`.
  Status Run(LogDirectory* logs) {
    Status status = Start(logs->path());
    if (status.ok()) status = Follow();
    // What the first launcher does not know yet; if it cannot be told, the store is gone and so is
    // the job.
    if (!status.ok() && !known_to_first_) static_cast<void>(link_.TellEnding(status).ok());
    if (!status.ok() && children_) children_->Terminate(kTerminateGrace);
    if (!status.ok() && StopSignal() == 0) logs->Keep();
    // The first launcher may end as soon as it has heard this, and its answer be lost.
    static_cast<void>(link_.Leave().ok());
    return status;
  }

 private:
  Status Start(const std::string& log_directory);
  Status Follow();
  Status ObeySignals();
  Status WhatBecameOf(const Children::Exit& exit);

  const NodeOptions node_;
  NodeLink link_;
  JobConfig config_;
  std::unique_ptr<Children> children_;
  Leaving leaving_{&MonotonicClock()};
  std::optional<TimePoint> told_to_stop_;
  bool known_to_first_ = false;  // why this launcher ends
};

Status FurtherJob::Start(const std::string& log_directory) {
  DT_RETURN_IF_ERROR(link_.StayAlive());
  DT_ASSIGN_OR_RETURN(std::optional<JobConfig> config, link_.AwaitConfig());
  if (!config) {
    known_to_first_ = true;
    DT_ASSIGN_OR_RETURN(const std::optional<std::string> why, link_.Ended());
    return EndedByFirst(why.value_or("it did not say why"));
  }
  config_ = *std::move(config);
  DT_ASSIGN_OR_RETURN(const JobSetup setup, JobSetup::Make(config_));
  const NodeRanks ranks = RanksOf(node_, config_);
  DT_RETURN_IF_ERROR(CheckMemory(config_, setup, ranks.first, ranks.count).status());
  NoticeSignals();  // until here they just end this process
  DT_ASSIGN_OR_RETURN(children_, SpawnRanks(node_, config_, log_directory));
  return {};
}

// Until all ranks have ended, or must.
Status FurtherJob::Follow() {
  Status lost;  // the store
  std::optional<Children::Exit> failed;
  const auto push = [&](RankId rank, const std::string& line) {
    if (lost.ok()) lost = link_.Push(rank, line);
  };
  std::set<RankId> late;
  const auto on_exit = [&](const Children::Exit& exit) {
    if (late.contains(exit.rank)) return;
    if (!exit.failed()) return leaving_.OneLeft();
    push(exit.rank, ExitLine(exit));
    if (!failed) failed = exit;
  };
  while (children_->any_running()) {
    DT_RETURN_IF_ERROR(ObeySignals());
    children_->Poll(kPollInterval, push, on_exit);
    for (const auto& [rank, why] : leaving_.LateOnes(children_->running(), children_->stopped())) {
      if (!late.insert(rank).second) continue;
      push(rank, DumpJson({{"event", "late"}, {"why", why}}));
      children_->Kill(rank);
    }
    if (lost.ok()) lost = link_.StayAlive();
    DT_RETURN_IF_ERROR(lost.Within(kFirstIsLost));
    const Result<std::optional<std::string>> why = link_.Ended();
    DT_RETURN_IF_ERROR(why.status().Within(kFirstIsLost));
    known_to_first_ = why->has_value();
    if (*why) return EndedByFirst(**why);
  }
  if (failed) return WhatBecameOf(*failed);
  if (!told_to_stop_) return {};
  known_to_first_ = true;
  return Aborted("stopped by signal {} after a step; the first launcher says what was saved",
                 StopSignal());
}

// All ranks here have ended, `exit` first and not well: the first launcher knows whether that was
// the cause of it all.
Status FurtherJob::WhatBecameOf(const Children::Exit& exit) {
  known_to_first_ = true;
  const Result<std::string> why = link_.AwaitEnd(kVerdictTimeout);
  if (why.ok()) return EndedByFirst(*why);
  return Unavailable("{}", exit.Describe()).Within(why.status().Within(kFirstIsLost).message());
}

// As the first launcher does (Launch): an error if everything is to end now.
Status FurtherJob::ObeySignals() {
  if (StopSignals() == 0) return {};
  if (config_.save.empty() || StopSignals() > 1) {
    return Aborted("stopped by signal {}", StopSignal());
  }
  const TimePoint now = MonotonicClock().Now();
  if (told_to_stop_ && now < *told_to_stop_ + kStopReminder) return {};
  children_->Signal(kStopSignal);
  const bool first_time = !told_to_stop_;
  told_to_stop_ = now;
  return first_time ? link_.TellStopped(StopSignal()) : Status::Ok();
}

}  // namespace

Status LaunchFurther(const NodeOptions& node, const std::string& log_directory) {
  bridge::SilenceTorchLog();
  DT_ASSIGN_OR_RETURN(auto logs, LogDirectory::Make(log_directory));
  DT_ASSIGN_OR_RETURN(const auto store, bridge::ConnectStore(node.store, node.join_timeout));
  return FurtherJob(node, store.get()).Run(logs.get());
}

}  // namespace dynatrain::apps
