#include "dynatrain/engine/remains.h"

#include <algorithm>

namespace dynatrain::engine {
namespace {

using planner::Piece;
using vps::Box;
using vps::Coords;

// Calls visit(range) for everything given back so far.
template <class Visit>
void ForEachGivenBack(const Program& program, const ExecutionProgress& progress,
                      const Visit& visit) {
  for (int32_t p = 0; p < progress.begun; ++p) {
    const Phase& phase = program.phases[static_cast<size_t>(p)];
    for (const MemoryRange& range : phase.drops) visit(range);
    for (const MemoryMove& move : phase.moves) visit(move.from);
    if (p >= progress.released) continue;
    for (const MemoryRange& range : phase.releases) visit(range);
  }
}

// Appends the parts of `box`, which lies in `shard`, that touch none of `gone`.
void AppendHeld(const vps::Shard& shard, const Box& box, int64_t elem_bytes,
                const std::vector<MemoryRange>& gone, std::vector<Piece>* held) {
  if (box.empty()) return;
  int64_t first = shard.offset;
  int64_t last = shard.offset;
  int widest = -1;  // the axis that spans most memory
  int64_t span = 0;
  for (int axis = 0; axis < box.dims(); ++axis) {
    const int64_t stride = shard.strides[axis];
    first += (box.lo()[axis] - shard.box.lo()[axis]) * stride;
    last += (box.hi()[axis] - 1 - shard.box.lo()[axis]) * stride;
    if ((box.extent(axis) - 1) * stride <= span) continue;
    span = (box.extent(axis) - 1) * stride;
    widest = axis;
  }
  const int64_t begin = first * elem_bytes;
  const int64_t end = (last + 1) * elem_bytes;
  bool touched = false;
  for (const MemoryRange& range : gone) {
    if (range.begin <= begin && end <= range.begin + range.bytes) return;
    touched = touched || (range.begin < end && begin < range.begin + range.bytes);
  }
  if (!touched) {
    held->push_back({shard.tensor, box});
    return;
  }
  if (widest < 0) return;
  const int64_t middle = box.lo()[widest] + box.extent(widest) / 2;
  Coords lower_hi = box.hi();
  Coords upper_lo = box.lo();
  lower_hi[widest] = upper_lo[widest] = middle;
  AppendHeld(shard, {box.lo(), lower_hi}, elem_bytes, gone, held);
  AppendHeld(shard, {upper_lo, box.hi()}, elem_bytes, gone, held);
}

// Appends what of `from` is not in `taken`: at most 2 * dims boxes.
void AppendDifference(const Box& from, const Box& taken, std::vector<Box>* left) {
  const Box common = vps::Intersect(from, taken);
  if (common.empty()) {
    left->push_back(from);
    return;
  }
  Coords lo = from.lo();
  Coords hi = from.hi();
  for (int axis = 0; axis < from.dims(); ++axis) {
    Coords below = hi;
    below[axis] = common.lo()[axis];
    if (lo[axis] < below[axis]) left->push_back({lo, below});
    Coords above = lo;
    above[axis] = common.hi()[axis];
    if (above[axis] < hi[axis]) left->push_back({above, hi});
    lo[axis] = common.lo()[axis];
    hi[axis] = common.hi()[axis];
  }
}

}  // namespace

bool GaveBack(const Program& program, const ExecutionProgress& progress) {
  bool any = false;
  ForEachGivenBack(program, progress, [&any](const MemoryRange&) { any = true; });
  return any;
}

std::vector<Piece> RemainsOf(const Program& program, const ExecutionProgress& progress) {
  std::vector<std::vector<MemoryRange>> gone(program.old_buffers.size());
  ForEachGivenBack(program, progress, [&gone](const MemoryRange& range) {
    gone[static_cast<size_t>(range.buffer)].push_back(range);
  });
  std::vector<Piece> held;
  for (const vps::Shard& shard : program.old_shards) {
    const auto buffer = static_cast<size_t>(shard.buffer);
    AppendHeld(shard, shard.box, vps::ElemBytes(program.old_buffers[buffer].dtype), gone[buffer],
               &held);
  }
  for (int32_t p = 0; p < progress.received; ++p) {
    const Phase& phase = program.phases[static_cast<size_t>(p)];
    for (const Message& message : phase.receives) {
      for (const Fragment& fragment : message.fragments) held.push_back(fragment.piece);
    }
    for (const LocalCopy& copy : phase.copies) held.push_back(copy.piece);
  }
  return held;
}

void AddDerivable(const vps::StateCatalog& catalog, std::vector<Piece>* held) {
  const size_t count = held->size();
  for (size_t i = 0; i < count; ++i) {
    const Piece piece = (*held)[i];
    const vps::StateTensor& master = catalog.tensor(piece.tensor);
    if (master.kind != vps::Kind::kMaster || master.dtype != vps::DType::kF32) continue;
    const auto parameter = catalog.Find(master.parameter, vps::Kind::kParam);
    if (parameter && catalog.tensor(*parameter).dtype == vps::DType::kBF16)
      held->push_back({*parameter, piece.box});
  }
}

std::vector<Piece> MissingFrom(const vps::StateCatalog& catalog, const std::vector<Piece>& held) {
  std::vector<Piece> sorted = held;
  std::ranges::sort(sorted);
  std::vector<Piece> missing;
  auto next = sorted.begin();
  for (const vps::StateTensor& tensor : catalog.tensors()) {
    std::vector<Box> left = {Box::Whole(catalog.shape_of(tensor.id))};
    for (; next != sorted.end() && next->tensor == tensor.id; ++next) {
      std::vector<Box> still;
      for (const Box& box : left) AppendDifference(box, next->box, &still);
      left = std::move(still);
    }
    for (const Box& box : left) {
      if (!box.empty()) missing.push_back({tensor.id, box});
    }
  }
  return missing;
}

}  // namespace dynatrain::engine
