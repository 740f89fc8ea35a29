#include "dynatrain/elastic/report_desk.h"

#include <algorithm>
#include <utility>

namespace dynatrain::elastic {
namespace {

constexpr size_t kStepsOfAReport = 5;

// First step minus the median of the later ones; 0 until there is a later one.
double FirstStepExcess(const std::vector<double>& steps) {
  if (steps.size() < 2) return 0;
  std::vector<double> later(steps.begin() + 1, steps.end());
  std::ranges::sort(later);
  return steps.front() - later[later.size() / 2];
}

Status DeleteKeys(Store& store, int64_t id, const std::vector<RankId>& participants) {
  for (const std::string_view name : {"move_before", "job_state", "moving"}) {
    DT_RETURN_IF_ERROR(store.Delete(SwitchKey(id, name)));
  }
  for (const RankId rank : participants) {
    for (const std::string_view name :
         {"fits", "planned", "prepared", "role_state", "tied", "verified", "remains", "report"}) {
      DT_RETURN_IF_ERROR(store.Delete(SwitchKey(id, name, rank)));
    }
  }
  return Status::Ok();
}

}  // namespace

ReportDesk::ReportDesk(RankId rank, SwitchOptions options, Clock* clock,
                       std::function<void(const SwitchReport&)> on_report)
    : rank_(rank), options_(options), clock_(clock), on_report_(std::move(on_report)) {}

void ReportDesk::Add(const SwitchParticipant& participant, bool keeps_training) {
  const std::lock_guard lock(mutex_);
  for (Own& own : own_) own.open = false;
  own_.push_back({participant.report(),
                  participant.participants(),
                  participant.reporter(),
                  participant.pause_began(),
                  participant.decided_at(),
                  keeps_training,
                  false,
                  {}});
}

void ReportDesk::FirstStepStarts() {
  const TimePoint now = clock_->Now();
  const std::lock_guard lock(mutex_);
  if (own_.empty() || !own_.back().open || own_.back().started) return;
  Own& own = own_.back();
  own.started = true;
  own.report.pause_seconds = ToSeconds(now - own.pause_began);
  own.report.activate_seconds = ToSeconds(now - own.decided_at);
}

void ReportDesk::StepTook(double seconds) {
  const std::lock_guard lock(mutex_);
  if (own_.empty() || !own_.back().open) return;
  Own& own = own_.back();
  own.steps.push_back(seconds);
  own.report.first_step_excess_seconds = FirstStepExcess(own.steps);
  if (own.steps.size() >= kStepsOfAReport) own.open = false;
}

std::optional<ReportDesk::Own> ReportDesk::TakeComplete(bool last) {
  const std::lock_guard lock(mutex_);
  if (own_.empty() || (own_.front().open && !last)) return std::nullopt;
  Own own = std::move(own_.front());
  own_.pop_front();
  return own;
}

Status ReportDesk::Pump(Store& store, bool last) {
  while (const std::optional<Own> own = TakeComplete(last)) {
    const SwitchReport& report = own->report;
    DT_RETURN_IF_ERROR(store.Set(SwitchKey(report.id, "report", rank_), report.ToJson()));
    if (own->reporter != rank_) continue;
    const std::lock_guard lock(mutex_);
    gatherings_.push_back(
        {report.id, own->participants, {{rank_, report}}, clock_->Now() + options_.report_timeout});
  }
  // Only this thread touches gatherings; the lock is for empty().
  std::vector<Gathering> gatherings;
  {
    const std::lock_guard lock(mutex_);
    gatherings.swap(gatherings_);
  }
  Status status;
  for (Gathering& gathering : gatherings) {
    if (status.ok()) status = Gather(store, &gathering);
  }
  std::erase_if(gatherings, [](const Gathering& g) { return g.participants.empty(); });
  const std::lock_guard lock(mutex_);
  std::ranges::move(gatherings, std::back_inserter(gatherings_));
  return status;
}

// Leaves gathering->participants empty once it is done with.
Status ReportDesk::Gather(Store& store, Gathering* gathering) {
  for (const RankId rank : gathering->participants) {
    if (gathering->reports.contains(rank)) continue;
    DT_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                        store.TryGet(SwitchKey(gathering->id, "report", rank)));
    if (!text) continue;
    DT_ASSIGN_OR_RETURN(gathering->reports[rank], SwitchReport::FromJson(*text));
  }
  const bool complete = gathering->reports.size() == gathering->participants.size();
  if (!complete && clock_->Now() < gathering->deadline) return Status::Ok();
  std::vector<SwitchReport> reports;
  for (const auto& [rank, report] : gathering->reports) reports.push_back(report);
  if (on_report_) on_report_(MergeReports(reports));
  const std::vector<RankId> participants = std::exchange(gathering->participants, {});
  // Keys that somebody may still read stay for good.
  return complete ? DeleteKeys(store, gathering->id, participants) : Status::Ok();
}

bool ReportDesk::empty() const {
  const std::lock_guard lock(mutex_);
  return own_.empty() && gatherings_.empty();
}

}  // namespace dynatrain::elastic
