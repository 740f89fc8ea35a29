// Element by element over a shard: for filling and comparing state, not for speed.
#ifndef DYNATRAIN_VPS_SHARD_ELEMENTS_H_
#define DYNATRAIN_VPS_SHARD_ELEMENTS_H_

#include <cstdint>

#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {

// Calls visit(index, element) for every element of `shard`, in row-major order: its row-major index
// in a tensor of `shape`, and its place in the buffer, in elements.
template <class Visit>
void ForEachElement(const Shape& shape, const Shard& shard, Visit visit) {
  const Box whole = Box::Whole(shape);
  Coords at = shard.box.lo();
  const int dims = shard.box.dims();
  const int64_t count = shard.box.elems();
  for (int64_t n = 0; n < count; ++n) {
    int64_t element = shard.offset;
    for (int a = 0; a < dims; ++a) element += (at[a] - shard.box.lo()[a]) * shard.strides[a];
    visit(FlatIndex(whole, at), element);
    for (int a = dims - 1; a >= 0; --a) {
      if (++at[a] < shard.box.hi()[a]) break;
      at[a] = shard.box.lo()[a];
    }
  }
}

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_SHARD_ELEMENTS_H_
