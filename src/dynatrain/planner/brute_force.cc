#include "dynatrain/planner/brute_force.h"

#include <algorithm>
#include <vector>

namespace dynatrain::planner {
namespace {

using vps::Box;
using vps::Coords;
using vps::Shard;
using vps::TensorId;

// Calls visit(begin, end) for each run of consecutive row-major indices of a tensor of `shape`
// inside `box`.
template <class Visit>
void ForEachRun(const vps::Shape& shape, const Box& box, const Visit& visit) {
  if (box.empty()) return;
  if (shape.dims() == 0) {
    visit(int64_t{0}, int64_t{1});
    return;
  }
  const Coords strides = vps::RowMajorStrides(shape);
  const int last = shape.dims() - 1;
  Coords index = box.lo();
  while (true) {
    int64_t begin = 0;
    for (int axis = 0; axis <= last; ++axis) begin += index[axis] * strides[axis];
    visit(begin, begin + box.extent(last));
    int axis = last - 1;
    while (axis >= 0 && ++index[axis] == box.hi()[axis]) {
      index[axis] = box.lo()[axis];
      --axis;
    }
    if (axis < 0) return;
  }
}

}  // namespace

ByteCount BruteForceMovedBytes(const vps::ShardMap& from, const vps::ShardMap& to) {
  const vps::StateCatalog& catalog = to.catalog();
  std::vector<unsigned char> held;
  ByteCount moved = 0;
  for (const RankId rank : to.Ranks()) {
    const std::vector<Shard> old_shards = from.ShardsOf(rank);
    const std::vector<Shard> new_shards = to.ShardsOf(rank);
    for (const vps::StateTensor& tensor : catalog.tensors()) {
      const vps::Shape& shape = catalog.shape_of(tensor.id);
      held.assign(static_cast<size_t>(vps::ElemCount(shape)), 0);
      for (const Shard& shard : old_shards) {
        if (shard.tensor != tensor.id) continue;
        ForEachRun(shape, shard.box, [&](int64_t begin, int64_t end) {
          std::fill(held.begin() + begin, held.begin() + end, 1);
        });
      }
      int64_t missing = 0;
      for (const Shard& shard : new_shards) {
        if (shard.tensor != tensor.id) continue;
        ForEachRun(shape, shard.box, [&](int64_t begin, int64_t end) {
          missing += std::count(held.begin() + begin, held.begin() + end, 0);
        });
      }
      moved += missing * vps::ElemBytes(tensor.dtype);
    }
  }
  return moved;
}

}  // namespace dynatrain::planner
