#include "dynatrain/elastic/agent.h"

#include <atomic>
#include <charconv>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "dynatrain/base/log.h"
#include "dynatrain/elastic/report_desk.h"

namespace dynatrain::elastic {
namespace {

constexpr char kJobEnd[] = "job/end";
constexpr char kLastId[] = "switch/last_id";

using What = BoundaryResult::What;

}  // namespace

class SwitchAgent::Impl {
 public:
  Impl(SwitchParticipant::Context context, std::shared_ptr<Store> store,
       std::unique_ptr<Store> background_store, std::shared_ptr<LayoutInstance> initial,
       std::function<void(const SwitchReport&)> on_report)
      : context_(std::move(context)),
        store_(std::move(store)),
        background_store_(std::move(background_store)),
        desk_(context_.rank, context_.options, context_.clock, std::move(on_report)),
        current_(std::move(initial)) {}

  void Begin(const Spawn& spawn) {
    join_ = spawn([this] { Run(); });
  }
  void End();

  LayoutInstance& current() { return *current_; }
  bool TakeReady();
  int64_t ready_switch() const { return ready_; }
  ReportDesk& desk() { return desk_; }

  Result<BoundaryResult> AtStepBoundary(int64_t step, bool all_ready);
  Result<BoundaryResult> WaitWhileIdle();

 private:
  // Where the next switch is, for the hand-over between the two threads. A switch that training was
  // told to be ready for ends only when the training thread has taken notice, so that at one
  // boundary all ranks mean the same switch.
  enum class Phase {
    kWatching,   // none; or off before anybody was told
    kPreparing,  // the background thread has it
    kReady,      // the training thread may take it
    kMoving,     // the training thread has it
    kMoved,      // done with; the background thread clears up
    kSettling,   // was kReady and is decided abort; whether the old layout goes on is not known yet
    kOff,        // was kReady and is decided abort; the training thread has to take notice
    kFollowed    // committed without this rank; the training thread has to take notice
  };

  // Background thread.
  void Run();
  Status Loop();
  Result<std::optional<SwitchRequest>> AwaitRequest(int64_t id);
  Status Process(const SwitchRequest& request);
  Status PrepareAndHandOver(SwitchParticipant* participant);
  Status Follow(SwitchParticipant* participant);
  Status AwaitMoved(SwitchParticipant* participant);
  bool LeaveReady(Phase to, const std::string& reason);
  Status GiveUp(SwitchParticipant* participant);
  Status CallOff(SwitchParticipant* participant);
  Status AwaitNotice();
  Status Housekeep();
  Status LookForJobEnd(Store& store);  // either thread, with its own store
  Status FlushReports();
  void Drop();
  void Rest(Duration duration) { context_.clock->SleepUntil(context_.clock->Now() + duration); }
  bool Ending();
  bool JobEnded() {
    const std::lock_guard lock(mutex_);
    return job_end_.has_value();
  }
  Phase phase() {
    const std::lock_guard lock(mutex_);
    return phase_;
  }

  // Training thread.
  // Shares the switch: the background thread lets go of its part if it loses the store.
  Result<BoundaryResult> Take(std::shared_ptr<SwitchParticipant> participant, int64_t step);
  std::optional<BoundaryResult> TakeNotice();  // needs mutex_

  const SwitchParticipant::Context context_;
  const std::shared_ptr<Store> store_;
  const std::unique_ptr<Store> background_store_;
  ReportDesk desk_;
  std::function<void()> join_;
  std::atomic<int64_t> ready_ = 0;  // id of the switch in Phase::kReady, else 0
  std::atomic<bool> stop_ = false;

  std::mutex mutex_;  // never held across a call to store, host or participant
  Phase phase_ = Phase::kWatching;
  std::shared_ptr<SwitchParticipant> participant_;
  std::shared_ptr<LayoutInstance> current_;   // written by the training thread only
  std::vector<std::shared_ptr<void>> trash_;  // released by the background thread
  std::string off_reason_;
  std::optional<std::string> job_end_;
  Status fatal_;
};

// ---- training thread ----

std::optional<BoundaryResult> SwitchAgent::Impl::TakeNotice() {
  if (phase_ == Phase::kOff) {
    phase_ = Phase::kWatching;
    return BoundaryResult{What::kRolledBack, "", off_reason_};
  }
  if (phase_ == Phase::kFollowed) {
    phase_ = Phase::kWatching;
    trash_.push_back(std::exchange(current_, participant_->next()));
    return BoundaryResult{What::kCommitted, "", ""};
  }
  return std::nullopt;
}

// Who is told "not ready" cannot agree on the switch that is off at the end of this step: that is
// notice enough.
bool SwitchAgent::Impl::TakeReady() {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kOff) phase_ = Phase::kWatching;
  return ready_ != 0;
}

Result<BoundaryResult> SwitchAgent::Impl::AtStepBoundary(int64_t step, bool all_ready) {
  std::shared_ptr<SwitchParticipant> participant;
  // The background thread settles within a deadline.
  while (all_ready && phase() == Phase::kSettling) Rest(context_.options.poll);
  {
    const std::lock_guard lock(mutex_);
    if (!fatal_.ok()) return fatal_;
    if (auto noticed = TakeNotice()) return *noticed;
    if (!all_ready) return BoundaryResult{};
    if (phase_ != Phase::kReady) {
      return Internal("step {}: all ranks are ready for a switch, but rank {} is not", step,
                      context_.rank);
    }
    phase_ = Phase::kMoving;
    ready_ = 0;
    participant = participant_;
  }
  return Take(std::move(participant), step);
}

Result<BoundaryResult> SwitchAgent::Impl::WaitWhileIdle() {
  DT_CHECK(!current_->active());
  TimePoint next_look = context_.clock->Now();
  while (true) {
    std::shared_ptr<SwitchParticipant> participant;
    {
      const std::lock_guard lock(mutex_);
      if (!fatal_.ok()) return fatal_;
      if (auto noticed = TakeNotice()) return *noticed;
      if (job_end_) return BoundaryResult{What::kJobEnded, "", *job_end_};
      if (phase_ == Phase::kReady) {
        phase_ = Phase::kMoving;
        ready_ = 0;
        participant = participant_;
      }
    }
    if (participant) return Take(std::move(participant), -1);
    if (context_.clock->Now() >= next_look) {
      DT_RETURN_IF_ERROR(LookForJobEnd(*store_));  // the background thread may be busy preparing
      next_look = context_.clock->Now() + context_.options.heartbeat;
    }
    Rest(context_.options.poll);
  }
}

Result<BoundaryResult> SwitchAgent::Impl::Take(std::shared_ptr<SwitchParticipant> participant,
                                               int64_t step) {
  const Result<Outcome> outcome = participant->Move(*store_, step);
  const bool committed = outcome.ok() && *outcome == Outcome::kCommitted;
  if (outcome.ok()) desk_.Add(*participant, committed && participant->next()->active());
  BoundaryResult result;
  if (committed) {
    result = {What::kCommitted, participant->job_state(), "", participant->role_state()};
  } else if (outcome.ok()) {
    result = {What::kRolledBack, "", participant->report().reason};
  }
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kMoved;
  if (!outcome.ok()) fatal_ = outcome.status();
  if (outcome.ok() && *outcome == Outcome::kLost) fatal_ = participant->LostStatus();
  if (!fatal_.ok()) return fatal_;
  if (committed) trash_.push_back(std::exchange(current_, participant->next()));
  return result;
}

void SwitchAgent::Impl::End() {
  stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (participant_ && phase_ == Phase::kPreparing) participant_->Stop();
  }
  context_.groups->Leave();
  if (join_) join_();
}

// ---- background thread ----

bool SwitchAgent::Impl::Ending() {
  const std::lock_guard lock(mutex_);
  return stop_ || !fatal_.ok();
}

void SwitchAgent::Impl::Run() {
  Status status = Loop();
  {
    const std::lock_guard lock(mutex_);
    if (fatal_.ok()) fatal_ = status;
  }
  // A switch that is lost ends the job, but is still told.
  if (status.ok() || status.code() == StatusCode::kDataLoss) {
    const Status flushed = FlushReports();
    if (status.ok()) status = flushed;
  }
  Drop();
  ready_ = 0;
  if (status.ok()) return;
  LogWarning("rank {}: no more switches: {}", context_.rank, status.ToString());
  const std::lock_guard lock(mutex_);
  if (fatal_.ok()) fatal_ = status;  // of the last reports
}

Status SwitchAgent::Impl::Loop() {
  for (int64_t id = 1;; ++id) {
    DT_ASSIGN_OR_RETURN(const std::optional<SwitchRequest> request, AwaitRequest(id));
    if (!request) break;
    DT_RETURN_IF_ERROR(Process(*request));
    Drop();
  }
  const std::lock_guard lock(mutex_);
  return fatal_;
}

Result<std::optional<SwitchRequest>> SwitchAgent::Impl::AwaitRequest(int64_t id) {
  while (!Ending()) {
    DT_RETURN_IF_ERROR(Housekeep());
    const Result<std::string> text =
        background_store_->Wait(SwitchKey(id, "request"), context_.options.heartbeat);
    if (!text.ok() && text.status().code() == StatusCode::kDeadlineExceeded) continue;
    if (!text.ok()) return text.status();
    const Result<SwitchRequest> request = SwitchRequest::FromJson(*text);
    // What cannot be read asks for a layout that cannot be parsed: refused like any other.
    if (!request.ok()) return std::optional(SwitchRequest{id, *text, 0});
    return std::optional(SwitchRequest{id, request->spec, request->requested_step});
  }
  return std::optional<SwitchRequest>();
}

Status SwitchAgent::Impl::Process(const SwitchRequest& request) {
  SwitchParticipant* participant = nullptr;
  {
    const std::lock_guard lock(mutex_);
    participant_ = std::make_shared<SwitchParticipant>(context_, request, current_);
    participant = participant_.get();
    phase_ = Phase::kPreparing;
    if (stop_) participant_->Stop();
  }
  return participant->participates() ? PrepareAndHandOver(participant) : Follow(participant);
}

Status SwitchAgent::Impl::PrepareAndHandOver(SwitchParticipant* participant) {
  const Status prepared = participant->Prepare(*background_store_);
  if (participant->report().outcome == Outcome::kLost) {
    desk_.Add(*participant, false);
    return prepared;
  }
  if (!prepared.ok() && prepared.code() != StatusCode::kAborted) return prepared;
  {
    const std::lock_guard lock(mutex_);
    phase_ = prepared.ok() ? Phase::kReady : Phase::kWatching;
    ready_ = prepared.ok() ? participant->request().id : 0;
  }
  if (prepared.ok()) return AwaitMoved(participant);
  desk_.Add(*participant, false);
  return Status::Ok();
}

Status SwitchAgent::Impl::Follow(SwitchParticipant* participant) {
  while (!Ending()) {
    DT_ASSIGN_OR_RETURN(const std::optional<Outcome> outcome,
                        participant->AwaitDecision(*background_store_, context_.options.heartbeat));
    DT_RETURN_IF_ERROR(Housekeep());
    if (!outcome) continue;
    if (*outcome == Outcome::kLost) return participant->LostStatus();
    const bool committed = *outcome == Outcome::kCommitted;
    {
      const std::lock_guard lock(mutex_);
      phase_ = committed ? Phase::kFollowed : Phase::kWatching;
    }
    return committed ? AwaitNotice() : Status::Ok();
  }
  return Status::Ok();
}

// From ready until the training thread has moved, or the switch is off.
Status SwitchAgent::Impl::AwaitMoved(SwitchParticipant* participant) {
  const std::string key = SwitchKey(participant->request().id, "decision");
  bool decided = false;
  while (phase() != Phase::kMoved) {
    if (stop_ && LeaveReady(Phase::kWatching, "")) return GiveUp(participant);
    DT_RETURN_IF_ERROR(Housekeep());
    if (JobEnded()) participant->Stop();
    if (decided) {
      Rest(context_.options.poll);
      continue;
    }
    const Result<std::string> text = background_store_->Wait(key, context_.options.heartbeat);
    if (!text.ok() && text.status().code() == StatusCode::kDeadlineExceeded) continue;
    if (!text.ok()) return text.status();
    decided = true;
    const Decision decision = Decision::FromText(*text);
    if (decision.commit) continue;
    if (LeaveReady(Phase::kSettling, decision.reason)) return CallOff(participant);
    participant->Cancel();
  }
  return Status::Ok();
}

// Takes a switch back that the training thread has not taken yet.
bool SwitchAgent::Impl::LeaveReady(Phase to, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kReady) return false;
  phase_ = to;
  ready_ = 0;
  off_reason_ = reason;
  return true;
}

Status SwitchAgent::Impl::GiveUp(SwitchParticipant* participant) {
  const Result<Outcome> outcome =
      participant->GiveUp(*background_store_, "the rank leaves the job");
  if (!outcome.ok()) return outcome.status();
  desk_.Add(*participant, false);
  return *outcome == Outcome::kLost ? participant->LostStatus() : Status::Ok();
}

Status SwitchAgent::Impl::CallOff(SwitchParticipant* participant) {
  DT_ASSIGN_OR_RETURN(const std::optional<Outcome> outcome,
                      participant->AwaitDecision(*background_store_, context_.options.heartbeat));
  desk_.Add(*participant, false);
  if (outcome == Outcome::kLost) return participant->LostStatus();
  DT_CHECK(outcome == Outcome::kRolledBack);
  {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::kOff;
  }
  return AwaitNotice();
}

Status SwitchAgent::Impl::AwaitNotice() {
  while (!Ending() && phase() != Phase::kWatching) {
    DT_RETURN_IF_ERROR(Housekeep());
    Rest(context_.options.poll);
  }
  return Status::Ok();
}

Status SwitchAgent::Impl::Housekeep() {
  std::vector<std::shared_ptr<void>> trash;
  bool idle = false;
  {
    const std::lock_guard lock(mutex_);
    trash.swap(trash_);
    idle = !current_->active() && !job_end_;
  }
  trash.clear();
  DT_RETURN_IF_ERROR(desk_.Pump(*background_store_, false));
  return idle ? LookForJobEnd(*background_store_) : Status::Ok();
}

Status SwitchAgent::Impl::LookForJobEnd(Store& store) {
  DT_ASSIGN_OR_RETURN(std::optional<std::string> end, store.TryGet(kJobEnd));
  if (!end) return Status::Ok();
  const std::lock_guard lock(mutex_);
  job_end_ = std::move(end);
  return Status::Ok();
}

Status SwitchAgent::Impl::FlushReports() {
  const TimePoint deadline = context_.clock->Now() + context_.options.report_timeout;
  while (true) {
    DT_RETURN_IF_ERROR(desk_.Pump(*background_store_, true));
    if (desk_.empty() || context_.clock->Now() > deadline) return Status::Ok();
    Rest(context_.options.heartbeat / 4);
  }
}

void SwitchAgent::Impl::Drop() {
  std::vector<std::shared_ptr<void>> trash;
  std::shared_ptr<SwitchParticipant> participant;
  const std::lock_guard lock(mutex_);
  trash.swap(trash_);
  participant.swap(participant_);
  phase_ = Phase::kWatching;
}

// ---- SwitchAgent ----

Spawn ThreadSpawn() {
  return [](std::function<void()> body) -> std::function<void()> {
    auto thread = std::make_shared<std::thread>(std::move(body));
    return [thread] { thread->join(); };
  };
}

SwitchAgent::SwitchAgent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SwitchAgent::~SwitchAgent() { impl_->End(); }

Result<std::unique_ptr<SwitchAgent>> SwitchAgent::Start(
    SwitchParticipant::Context context, std::shared_ptr<Store> store,
    std::shared_ptr<LayoutInstance> initial, std::function<void(const SwitchReport&)> on_report,
    const Spawn& spawn) {
  DT_ASSIGN_OR_RETURN(std::unique_ptr<Store> background, store->Clone());
  auto impl = std::make_unique<Impl>(std::move(context), std::move(store), std::move(background),
                                     std::move(initial), std::move(on_report));
  impl->Begin(spawn);
  return std::unique_ptr<SwitchAgent>(new SwitchAgent(std::move(impl)));
}

LayoutInstance& SwitchAgent::current() { return impl_->current(); }
bool SwitchAgent::ready() { return impl_->TakeReady(); }
int64_t SwitchAgent::ready_switch() const { return impl_->ready_switch(); }
Result<BoundaryResult> SwitchAgent::AtStepBoundary(int64_t step, bool all_ready) {
  return impl_->AtStepBoundary(step, all_ready);
}
Result<BoundaryResult> SwitchAgent::WaitWhileIdle() { return impl_->WaitWhileIdle(); }
void SwitchAgent::FirstStepStarts() { impl_->desk().FirstStepStarts(); }
void SwitchAgent::StepTook(double seconds) { impl_->desk().StepTook(seconds); }

Result<int64_t> RequestSwitch(Store& store, const std::string& spec, int64_t requested_step) {
  int64_t id = 1;
  DT_ASSIGN_OR_RETURN(const std::optional<std::string> last, store.TryGet(kLastId));
  if (last) {
    std::from_chars(last->data(), last->data() + last->size(), id);
    ++id;
  }
  for (;; ++id) {
    const std::string mine = SwitchRequest{id, spec, requested_step}.ToJson();
    DT_ASSIGN_OR_RETURN(const std::string taken, store.SetIfAbsent(SwitchKey(id, "request"), mine));
    if (taken != mine) continue;
    // Only a hint where to look: every id up to it is taken.
    DT_RETURN_IF_ERROR(store.Set(kLastId, fmt::format("{}", id)));
    return id;
  }
}

Status EndJob(Store& store, const std::string& reason) {
  const Result<std::string> first = store.SetIfAbsent(kJobEnd, reason);
  return first.ok() ? Status::Ok() : first.status();
}

}  // namespace dynatrain::elastic
