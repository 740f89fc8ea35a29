// Which phase a piece belongs to: a function of the catalog and the number of phases alone.
#ifndef DYNATRAIN_ENGINE_PHASES_H_
#define DYNATRAIN_ENGINE_PHASES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "dynatrain/planner/route.h"
#include "dynatrain/vps/catalog.h"

namespace dynatrain::engine {

// Logical order is all tensors of the catalog one behind the other, each in row-major order. K
// phases cut it into K runs of about equal bytes; a cut is moved down to a multiple of the tensor's
// longest trailing block of at most an eighth of a run, so that runs are few boxes.
class PhaseCuts {
 public:
  // Precondition: phases >= 1. The catalog must outlive this.
  PhaseCuts(const vps::StateCatalog& catalog, int32_t phases);

  // Calls visit(phase, part) for the parts of a piece: phases ascend, the parts of one phase are in
  // row-major order.
  using Visitor = std::function<void(int32_t phase, const planner::Piece& part)>;
  void Visit(const planner::Piece& piece, const Visitor& visit) const;

 private:
  // First row-major index of the tensor that belongs to `phase` or a later one.
  int64_t CutOf(vps::TensorId tensor, int32_t phase, int64_t block) const;
  int64_t BlockOf(vps::TensorId tensor) const;

  const vps::StateCatalog& catalog_;
  const int32_t phases_;
  std::vector<ByteCount> starts_;  // of each tensor in logical order
  ByteCount total_ = 0;
};

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_PHASES_H_
