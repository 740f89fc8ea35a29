// How finely programs are cut to fit a memory budget, agreed on by all ranks with one reduction.
//
// Each rank computes its own peaks alone; the largest of all ranks, number by number, then tells
// everybody the same: the coarsest way with which nobody exceeds the budget, or, if there is none,
// the smallest budget for which there is.
#ifndef DYNATRAIN_ENGINE_BUDGET_H_
#define DYNATRAIN_ENGINE_BUDGET_H_

#include <cstdint>
#include <map>
#include <vector>

#include "dynatrain/engine/program.h"

namespace dynatrain::engine {

struct Granularity {
  int32_t phases = 1;
  ByteCount granule_bytes = kDefaultGranuleBytes;
  void ApplyTo(CompileOptions* options) const;
  friend bool operator==(const Granularity&, const Granularity&) = default;
};

// What is tried, in order: 1, 2, 3, 4, 6, 8, 12, 16, 24 .. 1024 phases with granules of
// options.granule_bytes, and in mode kStream the same with a 32nd of them (64 KiB for the default),
// which are no longer huge pages. options.phases is ignored.
std::vector<Granularity> Granularities(const CompileOptions& options);

// Peak extra memory of the route's rank with each of Granularities(options). Pure; any thread.
Result<std::vector<ByteCount>> PeaksByGranularity(const planner::Route& route,
                                                  const vps::ShardMap& from,
                                                  const vps::ShardMap& to,
                                                  const planner::Topology& topology,
                                                  const std::vector<RankId>& ranks,
                                                  const CompileOptions& options);

// `peaks`: of every rank, as PeaksByGranularity gives them for `options`, equal on all ranks. The
// first of Granularities(options), of options.phases or more, with which all stay within `budget`
// bytes. kResourceExhausted, naming the rank that needs most and the smallest budget that would do,
// if there is none.
Result<Granularity> GranularityWithin(ByteCount budget, const CompileOptions& options,
                                      const std::map<RankId, std::vector<ByteCount>>& peaks);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_BUDGET_H_
