#include "dynatrain/engine/budget.h"

#include <algorithm>

namespace dynatrain::engine {

const std::vector<int32_t>& PhaseCounts() {
  static const std::vector<int32_t> counts = [] {
    std::vector<int32_t> list = {1};
    for (int32_t power = 2; power <= 1024; power *= 2) {
      if (power > 2) list.push_back(power / 4 * 3);
      list.push_back(power);
    }
    return list;
  }();
  return counts;
}

Result<std::vector<ByteCount>> PeaksByPhases(const planner::Route& route, const vps::ShardMap& from,
                                             const vps::ShardMap& to,
                                             const planner::Topology& topology,
                                             const std::vector<RankId>& ranks,
                                             const CompileOptions& options) {
  std::vector<ByteCount> peaks;
  CompileOptions tried = options;
  for (const int32_t phases : PhaseCounts()) {
    tried.phases = phases;
    DT_ASSIGN_OR_RETURN(const Program program, Compile(route, from, to, topology, ranks, tried));
    peaks.push_back(program.stats.peak_extra_bytes);
  }
  return peaks;
}

Result<int32_t> PhasesWithin(ByteCount budget, int32_t at_least,
                             const std::map<RankId, std::vector<ByteCount>>& peaks) {
  for (const auto& [rank, of_rank] : peaks) {
    if (of_rank.size() == PhaseCounts().size()) continue;
    return InvalidArgument("rank {} tells {} peaks, {} are right", rank, of_rank.size(),
                           PhaseCounts().size());
  }
  ByteCount least = INT64_MAX;
  RankId fullest = -1;
  for (size_t i = 0; i < PhaseCounts().size(); ++i) {
    if (PhaseCounts()[i] < at_least) continue;
    ByteCount most = 0;
    RankId needs_most = -1;
    for (const auto& [rank, of_rank] : peaks) {
      if (needs_most >= 0 && of_rank[i] <= most) continue;
      most = of_rank[i];
      needs_most = rank;
    }
    if (most <= budget) return PhaseCounts()[i];
    if (most >= least) continue;
    least = most;
    fullest = needs_most;
  }
  return ResourceExhausted(
      "a budget of {} bytes of extra memory is too small for this switch; the smallest that would "
      "do is {} bytes (rank {})",
      budget, least, fullest);
}

}  // namespace dynatrain::engine
