// Which phase a piece belongs to: the same on every rank that has to do with it.
#ifndef DYNATRAIN_ENGINE_PHASES_H_
#define DYNATRAIN_ENGINE_PHASES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "dynatrain/planner/route.h"
#include "dynatrain/vps/catalog.h"

namespace dynatrain::engine {

// K phases cut each class of pieces, all with the same old and the same new holders, into K runs of
// about equal bytes. So what goes from one set of ranks to another goes at the same pace all the
// time, and on each rank what comes in and what leaves are in step, whichever tensors are where.
//
// A class is in the order of kind, first home, tensor, box: its runs lie in few buffers. A cut is
// moved down to a multiple of the piece's longest trailing block of at most an eighth of a run of
// the class or a 64th of a run of all state, so that runs are few boxes.
//
// Every old or new holder of an element knows its class whole (planner::Route), so all agree
// without talking, at the cost of their own pieces.
class PhaseCuts {
 public:
  // Precondition: phases >= 1. `route` and `catalog` must outlive this.
  PhaseCuts(const planner::Route& route, const vps::StateCatalog& catalog, int32_t phases);

  // Calls visit(phase, part) for the parts of `piece`, which lies in one of route.pieces: phases
  // ascend, the parts of one phase are in row-major order.
  using Visitor = std::function<void(int32_t phase, const planner::Piece& part)>;
  void Visit(const planner::Piece& piece, const Visitor& visit) const;

 private:
  // Where a piece of the route lies in its class.
  struct Place {
    ByteCount begin = 0;
    ByteCount class_bytes = 0;
    int64_t block = 1;  // elements; cuts fall on multiples
  };
  size_t IndexOf(const planner::Piece& part) const;
  // First row-major index of a piece that belongs to `phase` or a later one.
  int64_t CutOf(size_t index, int32_t phase) const;
  int64_t BlockOf(const planner::Piece& piece, ByteCount class_bytes) const;
  ByteCount ElemBytesOf(const planner::Piece& piece) const {
    return vps::ElemBytes(catalog_.tensor(piece.tensor).dtype);
  }

  const planner::Route& route_;
  const vps::StateCatalog& catalog_;
  const int32_t phases_;
  std::vector<Place> places_;  // of route.pieces; empty for one phase
};

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_PHASES_H_
