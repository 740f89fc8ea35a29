#include "dynatrain/engine/phases.h"

#include <algorithm>

namespace dynatrain::engine {

using planner::Piece;
using vps::Box;
using vps::TensorId;

PhaseCuts::PhaseCuts(const vps::StateCatalog& catalog, int32_t phases)
    : catalog_(catalog), phases_(phases) {
  DT_CHECK(phases >= 1);
  for (const vps::StateTensor& tensor : catalog.tensors()) {
    starts_.push_back(total_);
    total_ += vps::ElemCount(catalog.shape_of(tensor.id)) * vps::ElemBytes(tensor.dtype);
  }
}

int64_t PhaseCuts::BlockOf(TensorId tensor) const {
  const ByteCount elem_bytes = vps::ElemBytes(catalog_.tensor(tensor).dtype);
  const int64_t most = total_ / phases_ / 8 / elem_bytes;
  const vps::Shape& shape = catalog_.shape_of(tensor);
  int64_t block = 1;
  for (int axis = shape.dims() - 1; axis >= 0 && block * shape[axis] <= most; --axis)
    block *= shape[axis];
  return std::max<int64_t>(block, 1);
}

int64_t PhaseCuts::CutOf(TensorId tensor, int32_t phase, int64_t block) const {
  const int64_t elems = vps::ElemCount(catalog_.shape_of(tensor));
  const ByteCount elem_bytes = vps::ElemBytes(catalog_.tensor(tensor).dtype);
  __extension__ using Wide = __int128;
  const auto border = static_cast<ByteCount>(Wide{total_} * phase / phases_);
  const int64_t cut = (border - starts_[static_cast<size_t>(tensor)] + elem_bytes - 1) / elem_bytes;
  if (cut >= elems) return elems;
  return cut <= 0 ? 0 : cut / block * block;
}

void PhaseCuts::Visit(const Piece& piece, const Visitor& visit) const {
  if (phases_ == 1) {
    visit(0, piece);
    return;
  }
  const Box whole = Box::Whole(catalog_.shape_of(piece.tensor));
  const int64_t block = BlockOf(piece.tensor);
  const ByteCount elem_bytes = vps::ElemBytes(catalog_.tensor(piece.tensor).dtype);
  __extension__ using Wide = __int128;
  const ByteCount start = starts_[static_cast<size_t>(piece.tensor)] +
                          vps::FlatIndex(whole, piece.box.lo()) * elem_bytes;
  // Rounding down can only move the piece's first element to a later phase.
  auto phase = static_cast<int32_t>(Wide{start} * phases_ / total_);
  int64_t left = piece.box.elems();
  std::vector<Box> runs;
  for (; phase < phases_ && left > 0; ++phase) {
    runs.clear();
    const int64_t begin = CutOf(piece.tensor, phase, block);
    const int64_t end = CutOf(piece.tensor, phase + 1, block);
    if (begin < end) vps::AppendFlatRangeBoxes(whole, begin, end, &runs);
    for (const Box& run : runs) {
      const Box part = vps::Intersect(run, piece.box);
      if (part.empty()) continue;
      left -= part.elems();
      visit(phase, {piece.tensor, part});
    }
  }
  DT_CHECK(left == 0);
}

}  // namespace dynatrain::engine
