#include "dynatrain/apps/blame.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include <fmt/ranges.h>

namespace dynatrain::apps {
namespace {

// After a first failure: how long to look for its cause before everything is ended.
constexpr Duration kWindow = std::chrono::milliseconds(700);
constexpr Duration kLongestWindow = std::chrono::seconds(10);

}  // namespace

void Blame::AddError(RankId rank, const std::string& message) {
  NoteTime();
  complained_.insert(rank);
  const bool timed_out = message.starts_with(StatusCodeName(StatusCode::kDeadlineExceeded));
  Status& slot = timed_out ? timed_out_ : error_;
  if (slot.ok()) slot = Unavailable("rank {}: {}", rank, message);
}

void Blame::AddExit(const Children::Exit& exit) {
  NoteTime();
  complained_.insert(exit.rank);
  Status& slot = exit.by_signal() ? killed_ : exited_;
  if (slot.ok()) slot = Unavailable("{}; the job cannot go on without it", exit.Describe());
}

bool Blame::Settled(Duration last_step) const {
  if (!any()) return false;
  const bool waits = killed_.ok() && !timed_out_.ok();
  return clock_->Now() >
         *since_ + (waits ? std::clamp(2 * last_step, kWindow, kLongestWindow) : kWindow);
}

Status Blame::Verdict(const std::vector<RankId>& active,
                      const std::map<RankId, int>& stopped) const {
  if (!killed_.ok()) return killed_;
  if (timed_out_.ok()) return !error_.ok() ? error_ : exited_;
  std::vector<RankId> silent;
  std::ranges::copy_if(active, std::back_inserter(silent),
                       [this](RankId rank) { return !complained_.contains(rank); });
  std::vector<std::string> guilty;
  for (const RankId rank : silent) {
    const auto at = stopped.find(rank);
    if (at != stopped.end()) {
      guilty.push_back(fmt::format("rank {} was stopped by {}", rank, SignalName(at->second)));
    }
  }
  const std::string& what = timed_out_.message();
  if (!guilty.empty()) return Unavailable("{}; {}", what, fmt::join(guilty, ", "));
  if (silent.empty()) return timed_out_;
  if (silent.size() == 1) return Unavailable("{}; no word from rank {}", what, silent.front());
  return Unavailable("{}; no word from ranks {}: each is stuck, or waits for one of these that is",
                     what, fmt::join(silent, ", "));
}

void Blame::NoteTime() {
  if (!since_) since_ = clock_->Now();
}

}  // namespace dynatrain::apps
