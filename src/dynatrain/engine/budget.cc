#include "dynatrain/engine/budget.h"

#include "dynatrain/engine/memory_plan.h"

namespace dynatrain::engine {

void Granularity::ApplyTo(CompileOptions* options) const {
  options->phases = phases;
  options->granule_bytes = granule_bytes;
}

std::vector<Granularity> Granularities(const CompileOptions& options) {
  std::vector<ByteCount> granules = {options.granule_bytes};
  const ByteCount fine = options.granule_bytes / 32 / kPageBytes * kPageBytes;
  if (options.mode == Mode::kStream && fine > 0) granules.push_back(fine);
  std::vector<Granularity> list;
  for (const ByteCount granule : granules) {
    list.push_back({1, granule});
    for (int32_t power = 2; power <= 1024; power *= 2) {
      if (power > 2) list.push_back({power / 4 * 3, granule});
      list.push_back({power, granule});
    }
  }
  return list;
}

Result<std::vector<ByteCount>> PeaksByGranularity(const planner::Route& route,
                                                  const vps::ShardMap& from,
                                                  const vps::ShardMap& to,
                                                  const planner::Topology& topology,
                                                  const std::vector<RankId>& ranks,
                                                  const CompileOptions& options) {
  std::vector<ByteCount> peaks;
  CompileOptions tried = options;
  for (const Granularity& granularity : Granularities(options)) {
    granularity.ApplyTo(&tried);
    DT_ASSIGN_OR_RETURN(const Program program, Compile(route, from, to, topology, ranks, tried));
    peaks.push_back(program.stats.peak_extra_bytes);
  }
  return peaks;
}

Result<Granularity> GranularityWithin(ByteCount budget, const CompileOptions& options,
                                      const std::map<RankId, std::vector<ByteCount>>& peaks) {
  const std::vector<Granularity> list = Granularities(options);
  for (const auto& [rank, of_rank] : peaks) {
    if (of_rank.size() == list.size()) continue;
    return InvalidArgument("rank {} tells {} peaks, {} are right", rank, of_rank.size(),
                           list.size());
  }
  ByteCount least = INT64_MAX;
  RankId fullest = -1;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].phases < options.phases) continue;
    ByteCount most = 0;
    RankId needs_most = -1;
    for (const auto& [rank, of_rank] : peaks) {
      if (needs_most >= 0 && of_rank[i] <= most) continue;
      most = of_rank[i];
      needs_most = rank;
    }
    if (most <= budget) return list[i];
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
