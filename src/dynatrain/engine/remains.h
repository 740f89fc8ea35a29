// What is left of the state when a streaming program stops half-way: who still holds which boxes,
// and which boxes nobody holds any more.
#ifndef DYNATRAIN_ENGINE_REMAINS_H_
#define DYNATRAIN_ENGINE_REMAINS_H_

#include <vector>

#include "dynatrain/engine/program.h"
#include "dynatrain/vps/catalog.h"

namespace dynatrain::engine {

// How far a rank came: the number of phases that it has entered, received and checked, and given
// back after acknowledgement. Each is at most the one before. All 0: nothing was done.
struct ExecutionProgress {
  int32_t begun = 0;
  int32_t received = 0;
  int32_t released = 0;
  friend bool operator==(const ExecutionProgress&, const ExecutionProgress&) = default;
};

// Whether the rank has given any of its old memory back; if not, its old state is whole.
bool GaveBack(const Program& program, const ExecutionProgress& progress);

// What the rank of `program` holds after it has come so far: of its old state what is not given
// back, of its new state what is received or copied and checked. Boxes may overlap.
std::vector<planner::Piece> RemainsOf(const Program& program, const ExecutionProgress& progress);

// Appends to `held` what can be computed of it: the bf16 parameters of fp32 masters, which are their
// masters rounded, between steps. Only for switches that derive (planner::PlanOptions::derive).
void AddDerivable(const vps::StateCatalog& catalog, std::vector<planner::Piece>* held);

// What of the whole state is in none of `held`: disjoint boxes, by tensor.
std::vector<planner::Piece> MissingFrom(const vps::StateCatalog& catalog,
                                        const std::vector<planner::Piece>& held);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_REMAINS_H_
