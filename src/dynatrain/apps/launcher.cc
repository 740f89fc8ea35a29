#include "dynatrain/apps/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <vector>

#include <nlohmann/json.hpp>

#include "dynatrain/apps/blame.h"
#include "dynatrain/apps/children.h"
#include "dynatrain/apps/job_setup.h"
#include "dynatrain/apps/json_sink.h"
#include "dynatrain/apps/leaving.h"
#include "dynatrain/apps/log_directory.h"
#include "dynatrain/apps/pending.h"
#include "dynatrain/apps/progress.h"
#include "dynatrain/apps/signals.h"
#include "dynatrain/base/json.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/bridge/fence.h"
#include "dynatrain/elastic/agent.h"
#include "dynatrain/elastic/switch_progress.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::apps {
namespace {

using elastic::Outcome;
using nlohmann::json;

constexpr Duration kPollInterval = std::chrono::milliseconds(100);
constexpr Duration kStoreTimeout = std::chrono::seconds(20);
constexpr Duration kTerminateGrace = std::chrono::seconds(2);
// How long other launchers get to end their ranks.
constexpr Duration kLeaveTimeout = std::chrono::seconds(5);
// How long they get to hear that the job will not start: some may be starting still.
constexpr Duration kRefusalTimeout = std::chrono::seconds(10);
constexpr Duration kStopReminder = std::chrono::seconds(1);
constexpr Duration kLookInterval = std::chrono::seconds(1);  // at what switches wait for
// A launcher may be silent for so much longer than a rank within a step.
constexpr Duration kSilenceMargin = std::chrono::seconds(5);
// Each gives a sign of life every second: after so long it is told that one does not; and after a
// failure, who has given none is lost.
constexpr Duration kSilenceToTell = std::chrono::seconds(5);
constexpr Duration kSignOfLife = std::chrono::seconds(3);

class Job {
 public:
  Job(const LaunchOptions& options, JsonSink sink, std::unique_ptr<LogDirectory> logs)
      : options_(options),
        sink_(std::move(sink)),
        logs_(std::move(logs)),
        progress_(options.config.last_step()) {}

  Status Run() {
    Status status = Start();
    if (status.ok()) status = Follow();
    if (!status.ok() && children_) children_->Terminate(kTerminateGrace);
    if (!status.ok() && link_) link_->EndOthers(status, kLeaveTimeout);
    control_.reset();
    progress_.End();
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, why] : late_) progress_.Note(fmt::format("{} and was killed", why));
    ReportUndone(status);
    if (!reports_.empty()) progress_.Note("\n" + SwitchTable(ReportsInOrder()));
    if (status.ok()) return sink_.status();
    if (StopSignal() == 0 && children_) {
      logs_->Keep();
      progress_.Note(fmt::format("the ranks' logs are in {}", logs_->path()));
    }
    return status;
  }

 private:
  Status Start();
  Status Follow();
  void OnExit(const Children::Exit& exit);
  void KillLateOnes();
  Status Verdict() const;
  std::vector<RankId> TrainingRanks() const;
  bool AskedToLeave();
  std::string SavedSoFar() const;
  void OnEvent(RankId rank, const std::string& line);
  void OnParsedEvent(RankId rank, const std::string& line, const json& event);
  void OnStep(const json& event);
  void OnSwitch(const std::string& line);
  elastic::Settlement OutcomeOf(int64_t id);
  void ReportUndone(const Status& job);
  Result<int64_t> RequestSwitch(const std::string& spec);
  Result<json> SwitchState(int64_t id);
  json StatusJson();
  std::vector<elastic::PendingSwitch> Pending();
  void TellSilent(Duration silence);
  void TellWaiting();
  std::vector<elastic::SwitchReport> ReportsInOrder() const {
    std::vector<elastic::SwitchReport> list;
    for (const auto& [id, report] : reports_) list.push_back(report);
    return list;
  }

  const LaunchOptions& options_;
  JsonSink sink_;
  std::unique_ptr<LogDirectory> logs_;
  Progress progress_;
  std::unique_ptr<bridge::StoreServer> store_server_;
  std::unique_ptr<elastic::Store> link_store_;
  std::unique_ptr<NodeLink> link_;
  std::unique_ptr<Children> children_;
  Blame blame_{&MonotonicClock()};
  Leaving leaving_{&MonotonicClock()};
  PendingWatch watch_{&MonotonicClock()};
  TimePoint next_look_ = {};
  std::map<RankId, std::string> late_;  // killed because they did not end with the job, and why
  std::optional<TimePoint> told_to_stop_;
  std::string saved_path_;  // the newest checkpoint of this job
  int64_t saved_step_ = 0;
  std::string save_failure_;  // of the last attempt

  std::mutex mutex_;  // guards what follows: also used by the control server's threads
  std::unique_ptr<elastic::Store> store_;
  json last_step_ = json::object();
  std::string layout_, previous_layout_;
  int64_t last_old_step_ = 0;  // in previous_layout_
  std::map<int64_t, elastic::SwitchReport> reports_;
  std::map<int64_t, elastic::SwitchRequest> requests_;

  std::unique_ptr<ControlServer> control_;  // last: its threads use the rest
};

Status Job::Start() {
  NodeOptions node = options_.node;
  if (node.serves_store) {
    DT_ASSIGN_OR_RETURN(store_server_, bridge::StoreServer::Start(node.listen));
    node.store.port = store_server_->address().port;
  }
  DT_ASSIGN_OR_RETURN(store_, bridge::ConnectStore(node.store, kStoreTimeout));
  DT_ASSIGN_OR_RETURN(link_store_, store_->Clone());
  link_ = std::make_unique<NodeLink>(link_store_.get(), node);
  DT_RETURN_IF_ERROR(link_->ShareConfig(options_.config));
  DT_RETURN_IF_ERROR(link_->AwaitOthers([] { return StopSignals() > 0; }));
  layout_ = options_.config.layout;
  if (options_.control) {
    ControlHandlers handlers{
        .request_switch = [this](const std::string& spec) { return RequestSwitch(spec); },
        .switch_state = [this](int64_t id) { return SwitchState(id); },
        .status = [this] { return StatusJson(); }};
    auto control = ControlServer::Start(*options_.control, std::move(handlers));
    if (!control.ok()) return control.status().Within("--control");
    control_ = *std::move(control);
    progress_.Note(
        fmt::format("control: dynatrain switch --job {} SPEC", control_->address().ToString()));
  }
  if (!options_.note.empty()) progress_.Note(options_.note);
  DT_ASSIGN_OR_RETURN(children_, SpawnRanks(node, options_.config, logs_->path()));
  return {};
}

Status Job::Follow() {
  const auto on_line = [this](RankId rank, const std::string& line) { OnEvent(rank, line); };
  const auto on_exit = [this](const Children::Exit& exit) { OnExit(exit); };
  const auto settled = [this] {
    return blame_.Settled(std::chrono::duration_cast<Duration>(
               std::chrono::duration<double>(last_step_.value("seconds", 0.0)))) &&
           (blame_.killed() || link_->HeardSince(blame_.since()) ||
            MonotonicClock().Now() > blame_.since() + kSignOfLife);
  };
  const Duration silence =
      kSilenceMargin + std::chrono::duration_cast<Duration>(
                           std::chrono::duration<double>(options_.config.step_timeout));
  while ((children_->any_running() || !link_->all_left()) && !settled()) {
    if (AskedToLeave()) {
      return Aborted("stopped by signal {} after step {}; {}", StopSignal(),
                     last_step_.value("step", 0), SavedSoFar());
    }
    children_->Poll(kPollInterval, on_line, on_exit);
    DT_RETURN_IF_ERROR(link_->Pull(on_line));
    if (!blame_.any()) {
      DT_RETURN_IF_ERROR(link_->Missing(silence));
      TellSilent(silence);
      TellWaiting();
    }
    KillLateOnes();
  }
  // A launcher that ended its ranks explains what the others complain of.
  if (blame_.any()) DT_RETURN_IF_ERROR(link_->Missing(silence));
  const Status verdict = Verdict();
  if (!blame_.any() || blame_.killed()) return verdict;
  // So does one that is lost with its ranks, of which the others see broken connections alone.
  const Status lost = link_->LostSince(blame_.since());
  return lost.ok() ? verdict : Unavailable("{}; {}", lost.message(), verdict.message());
}

void Job::OnExit(const Children::Exit& exit) {
  if (late_.contains(exit.rank)) return;
  if (exit.failed()) return blame_.AddExit(exit);
  leaving_.OneLeft();
}

void Job::KillLateOnes() {
  for (const Leaving::Late& late : leaving_.LateOnes(children_->running(), children_->stopped())) {
    if (late_.emplace(late.rank, late.why).second) children_->Kill(late.rank);
  }
}

Status Job::Verdict() const {
  const std::vector<RankId> training = TrainingRanks();
  if (blame_.any()) return blame_.Verdict(training, children_->stopped());
  const std::string stopped_by =
      StopSignal() != 0 ? fmt::format("signal {}", StopSignal()) : link_->StoppedBy();
  if (!stopped_by.empty()) {
    return Aborted("stopped by {} after step {}; {}", stopped_by, last_step_.value("step", 0),
                   SavedSoFar());
  }
  if (!save_failure_.empty()) {
    return Unavailable("the last checkpoint could not be saved: {}; {}", save_failure_,
                       SavedSoFar());
  }
  // An idle rank holds nothing that the job needs.
  for (const auto& [rank, why] : late_) {
    if (std::ranges::count(training, rank) > 0) return Unavailable("{} and was killed", why);
  }
  return {};
}

std::vector<RankId> Job::TrainingRanks() const {
  const Result<vps::Layout> layout = vps::ParseLayout(layout_);
  return layout.ok() ? layout->Ranks() : std::vector<RankId>();
}

// Whether to end everything now. With a directory for checkpoints the first signal lets the ranks
// end the step and save; they are told again until they end, for one may still be starting.
bool Job::AskedToLeave() {
  if (StopSignals() == 0) return false;
  if (options_.config.save.empty() || StopSignals() > 1) return true;
  const TimePoint now = MonotonicClock().Now();
  if (!told_to_stop_)
    progress_.Note("stopping after this step, then saving; a second signal stops at once");
  if (!told_to_stop_ || now > *told_to_stop_ + kStopReminder) {
    children_->Signal(kStopSignal);
    told_to_stop_ = now;
  }
  return false;
}

std::string Job::SavedSoFar() const {
  if (saved_path_.empty()) return "nothing was saved";
  return fmt::format("saved step {} to {}; go on with --resume", saved_step_, saved_path_);
}

void Job::OnEvent(RankId rank, const std::string& line) {
  const std::lock_guard lock(mutex_);
  try {
    OnParsedEvent(rank, line, json::parse(line));
  } catch (const json::exception& error) {
    blame_.AddError(rank,
                    fmt::format("sent an event that cannot be read: {}: {}", error.what(), line));
  }
}

void Job::OnParsedEvent(RankId rank, const std::string& line, const json& event) {
  const auto name = event.at("event").get<std::string>();
  if (name == "exit") {  // of a rank that another launcher started
    blame_.AddExit({rank, event.value("pid", 0), event.value("wait_status", 1)});
    return;
  }
  if (name == "late") {  // of a rank that another launcher has killed
    late_.emplace(rank, event.value("why", ""));
    return;
  }
  if (name == "error") {
    blame_.AddError(rank, event.value("message", "unknown"));
    return;
  }
  sink_.Write(line);
  if (name == "step") OnStep(event);
  if (name == "switch") OnSwitch(line);
  if (name == "requested") {
    const int64_t id = event.value("id", int64_t{0});
    requests_[id] = {id, event.value("spec", ""), event.value("step", int64_t{0})};
  }
  if (name == "saved") {
    saved_path_ = event.value("path", "");
    saved_step_ = event.value("step", int64_t{0});
    save_failure_.clear();
    progress_.Note(fmt::format("saved step {} to {} in {}", event.value("step", 0),
                               event.value("path", ""),
                               FormatSeconds(event.value("seconds", 0.0))));
  }
  if (name == "save_failed") {
    save_failure_ = event.value("message", "unknown");
    progress_.Note(
        fmt::format("could not save step {}: {}", event.value("step", 0), save_failure_));
  }
  if (name == "resumed") {
    progress_.Note(fmt::format("resumed step {} from {} in {}", event.value("step", 0),
                               event.value("path", ""),
                               FormatSeconds(event.value("load_seconds", 0.0))));
  }
}

void Job::OnStep(const json& event) {
  last_step_ = event;
  const std::string layout = event.value("layout", layout_);
  if (layout != layout_) {
    previous_layout_ = std::exchange(layout_, layout);
    last_old_step_ = event.value("step", int64_t{1}) - 1;
  }
  const double seconds = event.value("seconds", 0.0);
  const double rate = seconds > 0 ? event.value("tokens", 0.0) / seconds : 0;
  progress_.Step(event.value("step", int64_t{0}), event.value("loss", 0.0), rate, layout_);
}

void Job::OnSwitch(const std::string& line) {
  const Result<elastic::SwitchReport> report = elastic::SwitchReport::FromJson(line);
  if (!report.ok()) {
    progress_.Note(report.status().ToString());
    return;
  }
  reports_[report->id] = *report;
  if (report->outcome == Outcome::kCommitted && !report->reason.empty()) {
    progress_.Note(fmt::format("switch {} after step {}: {} -> {}; {}", report->id, report->step,
                               report->from, report->to, report->reason));
  } else if (report->outcome == Outcome::kCommitted) {
    progress_.Note(fmt::format("switch {} after step {}: {} -> {}, pause {}, moved {}", report->id,
                               report->step, report->from, report->to,
                               FormatSeconds(report->pause_seconds),
                               FormatBytes(report->moved_bytes)));
  } else if (report->outcome == Outcome::kLost) {
    progress_.Note(
        fmt::format("switch {} to {} is lost: {}", report->id, report->to, report->reason));
  } else {
    progress_.Note(fmt::format("switch {} to {} was not made, the layout stays {}: {}", report->id,
                               report->to, report->from, report->reason));
  }
}

// How a switch that nobody reported ended, as far as the store still tells.
elastic::Settlement Job::OutcomeOf(int64_t id) {
  const auto told = [&](std::string_view name) {
    const auto text = store_->TryGet(elastic::SwitchKey(id, name));
    return text.ok() ? *text : std::nullopt;
  };
  const auto decision = told("decision");
  if (decision && elastic::Decision::FromText(*decision).commit) return {Outcome::kCommitted, {}};
  if (const auto outcome = told("outcome")) return elastic::Settlement::FromText(*outcome);
  // In mode stream, from `moving` on, ranks may have given memory back.
  return {told("moving") ? Outcome::kLost : Outcome::kRolledBack, {}};
}

// What was asked for and not reported is told like any other outcome.
void Job::ReportUndone(const Status& job) {
  for (const auto& [id, request] : requests_) {
    if (reports_.contains(id)) continue;
    elastic::SwitchReport report;
    report.id = id;
    report.step = last_step_.value("step", int64_t{0});
    report.requested_step = request.requested_step;
    report.from = layout_;
    report.to = request.spec;
    const elastic::Settlement settled = OutcomeOf(id);
    report.outcome = settled.outcome;
    report.lost = settled.lost;
    if (settled.outcome == Outcome::kCommitted) {
      if (layout_ == request.spec) {
        report.from = previous_layout_;
        report.step = last_old_step_;
      }
      report.reason = "the job ended before its costs were told";
    } else {
      report.reason = job.ok() ? std::string("the job ended before all ranks were prepared")
                               : fmt::format("the job was ended first: {}", job.message());
    }
    json line = json::parse(report.ToJson());
    line["event"] = "switch";
    line["t"] = ToSeconds(MonotonicClock().Now());
    sink_.Write(DumpJson(line));
    OnSwitch(DumpJson(line));
  }
}

Result<int64_t> Job::RequestSwitch(const std::string& spec) {
  DT_ASSIGN_OR_RETURN(const JobSetup setup, JobSetup::Make(options_.config));
  DT_ASSIGN_OR_RETURN(const vps::Layout layout, setup.CheckedLayout(spec));
  const std::lock_guard lock(mutex_);
  if (layout.ToString() == layout_ && reports_.size() == requests_.size()) {
    return FailedPrecondition("the job is already in layout {}", layout_);
  }
  const auto step = last_step_.value("step", int64_t{0});
  DT_ASSIGN_OR_RETURN(const int64_t id, elastic::RequestSwitch(*store_, layout.ToString(), step));
  requests_[id] = {id, layout.ToString(), step};
  return id;
}

Result<json> Job::SwitchState(int64_t id) {
  const std::lock_guard lock(mutex_);
  if (const auto at = reports_.find(id); at != reports_.end()) {
    return json{{"state", "done"}, {"report", json::parse(at->second.ToJson())}};
  }
  if (!requests_.contains(id)) return NotFound("no switch {} was asked for", id);
  json state = {{"state", "pending"}};
  for (const elastic::PendingSwitch& pending : Pending()) {
    if (pending.request.id == id) state["pending"] = PendingJson(pending);
  }
  return state;
}

// The switches that were asked for and not reported, in order; empty once the store is gone.
// Needs mutex_.
std::vector<elastic::PendingSwitch> Job::Pending() {
  std::vector<elastic::SwitchRequest> requests;
  for (const auto& [id, request] : requests_) {
    if (!reports_.contains(id)) requests.push_back(request);
  }
  if (requests.empty()) return {};
  auto pending = elastic::ReadPending(*store_, layout_, requests);
  return pending.ok() ? *std::move(pending) : std::vector<elastic::PendingSwitch>();
}

// Of which launcher nothing is heard, long before that ends the job.
void Job::TellSilent(Duration silence) {
  const auto silent = link_->NextSilent(kSilenceToTell);
  if (!silent) return;
  json line = silent->ToJson();
  line["event"] = "silent";
  line["t"] = ToSeconds(MonotonicClock().Now());
  const std::lock_guard lock(mutex_);
  sink_.Write(DumpJson(line));
  progress_.Note(
      fmt::format("{}; the job ends after {:g} s of that", silent->ToText(), ToSeconds(silence)));
}

// Whom a switch waits for, once that has lasted.
void Job::TellWaiting() {
  const TimePoint now = MonotonicClock().Now();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  const std::lock_guard lock(mutex_);
  const auto notice = watch_.Look(Pending());
  if (!notice) return;
  json line = notice->ToJson(children_->stopped());
  line["event"] = "waiting";
  line["t"] = ToSeconds(now);
  sink_.Write(DumpJson(line));
  progress_.Note(notice->ToText(children_->stopped()));
}

json Job::StatusJson() {
  const std::lock_guard lock(mutex_);
  json status = {{"step", last_step_.value("step", int64_t{0})},
                 {"steps", options_.config.steps},
                 {"layout", layout_},
                 {"num_ranks", options_.config.num_ranks},
                 {"model", options_.config.model},
                 {"switches", json::array()},
                 {"pending", json::array()}};
  if (last_step_.contains("loss")) status["loss"] = last_step_["loss"];
  for (const auto& [id, report] : reports_)
    status["switches"].push_back(json::parse(report.ToJson()));
  for (const elastic::PendingSwitch& pending : Pending())
    status["pending"].push_back(PendingJson(pending));
  return status;
}

}  // namespace

void RefuseOthers(const NodeOptions& node, const Status& why) {
  if (node.count == 1) return;
  bridge::SilenceTorchLog();
  // Whoever cannot be told finds out by its own --join-timeout.
  std::unique_ptr<bridge::StoreServer> server;
  if (node.serves_store) {
    auto started = bridge::StoreServer::Start(node.listen);
    if (!started.ok()) return;
    server = *std::move(started);
  }
  const auto store = bridge::ConnectStore(node.store, kRefusalTimeout);
  if (!store.ok()) return;
  NodeLink(store->get(), node).EndOthers(why, std::min(kRefusalTimeout, node.join_timeout));
}

Status Launch(const LaunchOptions& options) {
  bridge::SilenceTorchLog();
  Result<JsonSink> sink = JsonSink::Open(options.json);
  if (!sink.ok()) RefuseOthers(options.node, sink.status());
  DT_RETURN_IF_ERROR(sink.status());
  auto logs = LogDirectory::Make(options.log_directory);
  if (!logs.ok()) RefuseOthers(options.node, logs.status());
  DT_RETURN_IF_ERROR(logs.status());
  NoticeSignals();
  return Job(options, *std::move(sink), *std::move(logs)).Run();
}

}  // namespace dynatrain::apps
