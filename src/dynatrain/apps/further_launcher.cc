// A launcher that is not the job's first.
#include <chrono>

#include <nlohmann/json.hpp>

#include "dynatrain/apps/launcher.h"
#include "dynatrain/apps/log_directory.h"
#include "dynatrain/apps/signals.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/bridge/fence.h"

namespace dynatrain::apps {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(100);
constexpr Duration kJoinTimeout = std::chrono::seconds(120);
constexpr Duration kTerminateGrace = std::chrono::seconds(2);

// The event that stands for the end of a rank here.
std::string ExitLine(const Children::Exit& exit) {
  return nlohmann::json{{"event", "exit"}, {"pid", exit.pid}, {"wait_status", exit.wait_status}}
      .dump();
}

// Until all ranks have ended, or must.
Status Follow(const JobConfig& config, Children* children, NodeLink* link) {
  Status lost;  // the first launcher, or the store
  const auto push = [&](RankId rank, const std::string& line) {
    if (lost.ok()) lost = link->Push(rank, line);
  };
  const auto on_exit = [&](const Children::Exit& exit) {
    if (exit.failed()) push(exit.rank, ExitLine(exit));
  };
  int signals_passed_on = 0;
  while (children->any_running()) {
    if (StopSignals() > signals_passed_on) {
      if (config.save.empty() || StopSignals() > 1) {
        return Aborted("stopped by signal {}", StopSignal());
      }
      children->Signal(kStopSignal);
      signals_passed_on = StopSignals();
    }
    children->Poll(kPollInterval, push, on_exit);
    DT_RETURN_IF_ERROR(lost);
    DT_ASSIGN_OR_RETURN(const std::optional<std::string> why, link->Ended());
    if (why) return Aborted("the first launcher ended the job: {}", *why);
  }
  return {};
}

}  // namespace

Status LaunchFurther(const NodeOptions& node, const std::string& log_directory) {
  NoticeSignals();
  bridge::SilenceTorchLog();
  DT_ASSIGN_OR_RETURN(auto logs, LogDirectory::Make(log_directory));
  DT_ASSIGN_OR_RETURN(const auto store, bridge::ConnectStore(node.store, kJoinTimeout));
  NodeLink link(store.get(), node);
  DT_ASSIGN_OR_RETURN(const JobConfig config, link.AwaitConfig(kJoinTimeout));
  DT_ASSIGN_OR_RETURN(const auto children, SpawnRanks(node, config, logs->path()));
  Status status = Follow(config, children.get(), &link);
  if (!status.ok()) {
    children->Terminate(kTerminateGrace);
    logs->Keep();
  }
  const Status left = link.Leave();
  return status.ok() ? left : status;
}

}  // namespace dynatrain::apps
