// bf16 parameters computed from their fp32 masters in the new layout, instead of being moved
// (planner::PlanOptions::derive).
#ifndef DYNATRAIN_ENGINE_DERIVE_H_
#define DYNATRAIN_ENGINE_DERIVE_H_

#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/engine/program.h"
#include "dynatrain/engine/state.h"
#include "dynatrain/planner/route.h"

namespace dynatrain::engine {

// One piece of a parameter and the same piece of its master, both in the new buffers.
struct Derivation {
  Region master;
  Region parameter;
};

// The derivations of a route, in its order. Fails (kInvalidArgument) for a piece that is not bf16
// with an fp32 master on this rank.
Result<std::vector<Derivation>> PlanDerivations(const planner::Route& route,
                                                const vps::ShardMap& to);

// Rounds masters to the nearest even bf16. After the program has run: the masters have arrived.
void Derive(const std::vector<Derivation>& derivations, StateBuffers* state);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_DERIVE_H_
