// Ties: a tied tensor has a copy on each stage that is its home, and a switch takes any one of them
// for the tensor. So that copies that have drifted apart are reported and not silently picked from,
// all ranks that hold old copies hash them, and the sum of keyed terms over all ranks tells whether
// the hashes agree (vps::ReplicaTerm). The cost is one pass over the tied tensors of a rank. A
// switch of mode stream, which has no way back, is checked before it gives any memory back.
#ifndef DYNATRAIN_ENGINE_TIES_H_
#define DYNATRAIN_ENGINE_TIES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/engine/program.h"
#include "dynatrain/engine/state.h"

namespace dynatrain::engine {

// By name of the tied tensor ("embedding.weight/exp_avg"): terms, mod 2^61 - 1. Summed over all
// ranks, 0 for a tensor whose copies agree.
using TieSums = std::map<std::string, uint64_t>;

// Whether a catalog has tied tensors at all.
bool HasTies(const vps::StateCatalog& catalog);

// The parts of `rank`'s tied tensors that others hold as well.
Result<std::vector<TiedPart>> TiedPartsOf(const vps::ShardMap& map, RankId rank);

// What this rank adds. Reads only.
TieSums SumTies(const Program& program, const StateBuffers& old_state);

void AddTies(const TieSums& more, TieSums* sums);

// Of the sums of all ranks: kDataLoss, naming the tensors whose copies differ.
Status CheckTies(const TieSums& sums);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_TIES_H_
