#include "dynatrain/engine/phases.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace dynatrain::engine {

using planner::ClassedPiece;
using planner::Piece;
using vps::Box;

__extension__ using Wide = __int128;

PhaseCuts::PhaseCuts(const planner::Route& route, const vps::StateCatalog& catalog, int32_t phases)
    : route_(route), catalog_(catalog), phases_(phases) {
  DT_CHECK(phases >= 1);
  if (phases == 1) return;
  const std::vector<ClassedPiece>& pieces = route.pieces;
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) {
    const auto& [piece, cls] = pieces[i];
    return std::tuple(cls, catalog.tensor(piece.tensor).kind,
                      catalog.parameter_of(piece.tensor).homes.front(), i);
  });
  places_.resize(pieces.size());
  for (size_t first = 0; first < order.size();) {
    const int32_t cls = pieces[order[first]].cls;
    ByteCount bytes = 0;
    size_t end = first;
    for (; end < order.size() && pieces[order[end]].cls == cls; ++end) {
      const Piece& piece = pieces[order[end]].piece;
      places_[order[end]].begin = bytes;
      bytes += piece.box.elems() * ElemBytesOf(piece);
    }
    for (; first < end; ++first) {
      Place& place = places_[order[first]];
      place.class_bytes = bytes;
      place.block = BlockOf(pieces[order[first]].piece, bytes);
    }
  }
}

int64_t PhaseCuts::BlockOf(const Piece& piece, ByteCount class_bytes) const {
  const ByteCount most_bytes =
      std::max(class_bytes / phases_ / 8, catalog_.total_bytes() / phases_ / 64);
  const int64_t most = most_bytes / ElemBytesOf(piece);
  int64_t block = 1;
  for (int axis = piece.box.dims() - 1; axis >= 0 && block * piece.box.extent(axis) <= most; --axis)
    block *= piece.box.extent(axis);
  return block;
}

int64_t PhaseCuts::CutOf(size_t index, int32_t phase) const {
  const Piece& piece = route_.pieces[index].piece;
  const Place& place = places_[index];
  const int64_t elems = piece.box.elems();
  const ByteCount elem_bytes = ElemBytesOf(piece);
  const auto border = static_cast<ByteCount>(Wide{place.class_bytes} * phase / phases_);
  if (border <= place.begin) return 0;
  const int64_t cut = (border - place.begin + elem_bytes - 1) / elem_bytes;
  return cut >= elems ? elems : cut / place.block * place.block;
}

// A piece that contains another one is not after it in (tensor, box) order.
size_t PhaseCuts::IndexOf(const Piece& part) const {
  const auto& pieces = route_.pieces;
  auto it = std::upper_bound(pieces.begin(), pieces.end(), part,
                             [](const Piece& value, const ClassedPiece& entry) {
                               return std::tie(value.tensor, value.box.lo()) <
                                      std::tie(entry.piece.tensor, entry.piece.box.lo());
                             });
  while (it != pieces.begin()) {
    --it;
    DT_CHECK(it->piece.tensor == part.tensor);
    if (it->piece.box.Contains(part.box)) return static_cast<size_t>(it - pieces.begin());
  }
  DT_CHECK_MSG(false, "a piece that is none of the route's");
  return 0;
}

void PhaseCuts::Visit(const Piece& piece, const Visitor& visit) const {
  if (phases_ == 1) {
    visit(0, piece);
    return;
  }
  const size_t index = IndexOf(piece);
  const Place& place = places_[index];
  const Box& whole = route_.pieces[index].piece.box;
  const ByteCount start = place.begin + vps::FlatIndex(whole, piece.box.lo()) * ElemBytesOf(piece);
  // Rounding down can only move the piece's first element to a later phase.
  auto phase = static_cast<int32_t>(Wide{start} * phases_ / place.class_bytes);
  int64_t left = piece.box.elems();
  std::vector<Box> runs;
  for (; phase < phases_ && left > 0; ++phase) {
    runs.clear();
    const int64_t begin = CutOf(index, phase);
    const int64_t end = CutOf(index, phase + 1);
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
