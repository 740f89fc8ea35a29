#include "dynatrain/apps/pending.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "dynatrain/apps/children.h"

namespace dynatrain::apps {
namespace {

using elastic::PendingSwitch;
using elastic::SwitchStage;
using nlohmann::json;

constexpr Duration kFirstNotice = std::chrono::seconds(5);

bool Waits(const PendingSwitch& pending) { return !pending.progress.waiting_for.empty(); }

bool SameWait(const PendingSwitch& a, const PendingSwitch& b) {
  return a.request.id == b.request.id && a.progress.stage == b.progress.stage &&
         a.progress.waiting_for == b.progress.waiting_for;
}

// Those of `stopped` that `pending` waits for.
std::map<RankId, int> StoppedOf(const PendingSwitch& pending,
                                const std::map<RankId, int>& stopped) {
  std::map<RankId, int> those;
  for (const RankId rank : pending.progress.waiting_for) {
    if (const auto at = stopped.find(rank); at != stopped.end()) those.insert(*at);
  }
  return those;
}

}  // namespace

json PendingJson(const PendingSwitch& pending) {
  return {{"id", pending.request.id},
          {"to", pending.request.spec},
          {"requested_step", pending.request.requested_step},
          {"stage", elastic::SwitchStageName(pending.progress.stage)},
          {"waiting_for", pending.progress.waiting_for}};
}

std::string PendingText(const json& pending) {
  const auto ranks = pending.value("waiting_for", std::vector<RankId>());
  std::string text = fmt::format("switch {} to {}: {}", pending.value("id", int64_t{0}),
                                 pending.value("to", ""), pending.value("stage", ""));
  for (const RankId rank : ranks) {
    text += rank != ranks.front() ? ", "
            : ranks.size() == 1   ? ", waits for rank "
                                  : ", waits for ranks ";
    text += std::to_string(rank);
  }
  return text;
}

json PendingWatch::Notice::ToJson(const std::map<RankId, int>& stopped) const {
  json line = PendingJson(pending);
  line["seconds"] = seconds;
  line["stopped"] = json::array();
  for (const auto& [rank, signal] : StoppedOf(pending, stopped)) line["stopped"].push_back(rank);
  return line;
}

std::string PendingWatch::Notice::ToText(const std::map<RankId, int>& stopped) const {
  std::string text =
      fmt::format("{}; no answer for {:.0f} s", PendingText(PendingJson(pending)), seconds);
  for (const auto& [rank, signal] : StoppedOf(pending, stopped))
    text += fmt::format("; rank {} was stopped by {}", rank, SignalName(signal));
  if (pending.progress.stage == SwitchStage::kPreparing) {
    // docs/protocol.md, what each failure leads to.
    text += fmt::format("; it is called off after {:.0f} s at most",
                        ToSeconds(3 * elastic::SwitchOptions{}.prepare_timeout));
  }
  return text;
}

std::optional<PendingWatch::Notice> PendingWatch::Look(const std::vector<PendingSwitch>& pending) {
  const auto waits = std::ranges::find_if(pending, Waits);
  if (waits == pending.end()) {
    last_.reset();
    return std::nullopt;
  }
  const TimePoint now = clock_->Now();
  if (!last_ || !SameWait(*last_, *waits)) {
    last_ = *waits;
    since_ = now;
    due_ = kFirstNotice;
  }
  if (now < since_ + due_) return std::nullopt;
  while (now >= since_ + due_) due_ *= 2;
  return Notice{*waits, ToSeconds(now - since_)};
}

}  // namespace dynatrain::apps
