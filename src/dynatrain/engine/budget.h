// How many phases a memory budget needs, agreed on by all ranks with one reduction.
//
// Each rank computes its own peaks alone; the largest of all ranks, number by number, then tells
// everybody the same: the fewest phases with which nobody exceeds the budget, or, if there are none,
// the smallest budget for which there are.
#ifndef DYNATRAIN_ENGINE_BUDGET_H_
#define DYNATRAIN_ENGINE_BUDGET_H_

#include <cstdint>
#include <map>
#include <vector>

#include "dynatrain/engine/program.h"

namespace dynatrain::engine {

// The numbers of phases that are tried, ascending: 1, 2, 3, 4, 6, 8, 12, 16, 24 .. 1024.
const std::vector<int32_t>& PhaseCounts();

// Peak extra memory of the route's rank with each of PhaseCounts(). options.phases is ignored.
// Pure; any thread.
Result<std::vector<ByteCount>> PeaksByPhases(const planner::Route& route, const vps::ShardMap& from,
                                             const vps::ShardMap& to,
                                             const planner::Topology& topology,
                                             const std::vector<RankId>& ranks,
                                             const CompileOptions& options);

// `peaks`: of every rank, as PeaksByPhases gives them. The fewest phases, `at_least` or more, with
// which all stay within `budget` bytes. kResourceExhausted, naming the rank that needs most and the
// smallest budget that would do, if there is no such number.
Result<int32_t> PhasesWithin(ByteCount budget, int32_t at_least,
                             const std::map<RankId, std::vector<ByteCount>>& peaks);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_BUDGET_H_
