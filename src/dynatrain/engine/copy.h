// Strided regions of buffers: to and from runs of bytes in logical row-major order. Any element
// size; whole regions, rows and blocks of equal stride go by memcpy.
#ifndef DYNATRAIN_ENGINE_COPY_H_
#define DYNATRAIN_ENGINE_COPY_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "dynatrain/base/types.h"
#include "dynatrain/engine/program.h"

namespace dynatrain::engine {

// Whether the elements of the region, in row-major order, lie one after the other.
bool IsDense(const Region& region);

// Whether all elements of the region lie inside a buffer of `bytes`.
bool Fits(const Region& region, ByteCount bytes);

// The region as slabs of at most `most_bytes` (but at least one element), in row-major order; one
// behind the other they are the region's run of bytes. So that a long region can be packed while
// its beginning travels.
template <class Visit>
void ForEachSlab(const Region& region, ByteCount most_bytes, const Visit& visit);

// `buffer` is the whole buffer that the region names; `run` has region.bytes() bytes. No overlap.
void Pack(ConstByteSpan buffer, const Region& region, ByteSpan run);
void Unpack(ConstByteSpan run, const Region& region, ByteSpan buffer);

// Precondition: equal extents and element sizes. No overlap.
void CopyRegion(ConstByteSpan from_buffer, const Region& from, ByteSpan to_buffer,
                const Region& to);

void FillRegion(ByteSpan buffer, const Region& region, std::byte value);

// XXH3 (64 bit) of regions one behind the other; equal to the hash of all of them as one run.
// Reusable: Finish begins anew.
class RegionHasher {
 public:
  RegionHasher();
  ~RegionHasher();
  void Add(ConstByteSpan buffer, const Region& region);
  uint64_t Finish();

 private:
  class Rows;
  std::unique_ptr<Rows> rows_;
};

// XXH3 (64 bit) of the region's bytes in row-major order: the same for any strides.
uint64_t HashRegion(ConstByteSpan buffer, const Region& region);

template <class Visit>
void ForEachSlab(const Region& region, ByteCount most_bytes, const Visit& visit) {
  int axis = 0;
  while (axis < region.extent.dims() && region.extent[axis] == 1) ++axis;
  if (region.bytes() <= most_bytes || axis == region.extent.dims()) {
    visit(region);
    return;
  }
  const int64_t step = std::max<int64_t>(1, most_bytes / (region.bytes() / region.extent[axis]));
  for (int64_t begin = 0; begin < region.extent[axis]; begin += step) {
    Region slab = region;
    slab.offset += begin * region.strides[axis];
    slab.extent[axis] = std::min(step, region.extent[axis] - begin);
    ForEachSlab(slab, most_bytes, visit);
  }
}

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_COPY_H_
