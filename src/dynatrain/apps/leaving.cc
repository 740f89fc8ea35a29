#include "dynatrain/apps/leaving.h"

#include <chrono>

#include <fmt/format.h>

#include "dynatrain/apps/children.h"

namespace dynatrain::apps {
namespace {

constexpr Duration kTimeOfAStoppedRank = std::chrono::seconds(5);
constexpr Duration kTime = std::chrono::seconds(30);

}  // namespace

void Leaving::OneLeft() {
  if (!first_left_) first_left_ = clock_->Now();
}

std::vector<Leaving::Late> Leaving::LateOnes(const std::vector<RankId>& running,
                                             const std::map<RankId, int>& stopped) const {
  std::vector<Late> late;
  if (!first_left_) return late;
  const Duration passed = clock_->Now() - *first_left_;
  for (const RankId rank : running) {
    const auto at = stopped.find(rank);
    const Duration time = at == stopped.end() ? kTime : kTimeOfAStoppedRank;
    if (passed <= time) continue;
    const std::string stop =
        at == stopped.end() ? "" : fmt::format("was stopped by {} and ", SignalName(at->second));
    late.push_back({rank, fmt::format("rank {} {}did not end within {} s of the end of the job",
                                      rank, stop, ToSeconds(time))});
  }
  return late;
}

}  // namespace dynatrain::apps
