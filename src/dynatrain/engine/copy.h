// Strided regions of buffers: to and from runs of bytes in logical row-major order. Any element size; whole regions, rows
// and blocks of equal stride go by memcpy.
#ifndef DYNATRAIN_ENGINE_COPY_H_
#define DYNATRAIN_ENGINE_COPY_H_

#include <cstdint>

#include "dynatrain/base/types.h"
#include "dynatrain/engine/program.h"

namespace dynatrain::engine {

// Whether the elements of the region, in row-major order, lie one after the other.
bool IsDense(const Region& region);

// Whether all elements of the region lie inside a buffer of `bytes`.
bool Fits(const Region& region, ByteCount bytes);

// `buffer` is the whole buffer that the region names; `run` has region.bytes() bytes. No overlap.
void Pack(ConstByteSpan buffer, const Region& region, ByteSpan run);
void Unpack(ConstByteSpan run, const Region& region, ByteSpan buffer);

// Precondition: equal extents and element sizes. No overlap.
void CopyRegion(ConstByteSpan from_buffer, const Region& from, ByteSpan to_buffer, const Region& to);

void FillRegion(ByteSpan buffer, const Region& region, std::byte value);

// XXH3 (64 bit) of the region's bytes in row-major order: the same for any strides.
uint64_t HashRegion(ConstByteSpan buffer, const Region& region);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_COPY_H_
