#include "dynatrain/engine/copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
// Picks SSE2, AVX2 or AVX-512 at run time; equal hashes.
#include <xxh_x86dispatch.h>
#else
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

namespace dynatrain::engine {
namespace {

using vps::Coords;
using vps::kMaxDims;

// A copy loop nest over axes of extent above 1, outermost first, with strides in bytes; axes that
// lie one behind the other on both sides are one axis. `row` bytes are contiguous on both sides.
struct Nest {
  int dims = 0;
  std::array<int64_t, kMaxDims> extent{};
  std::array<int64_t, kMaxDims> from{};
  std::array<int64_t, kMaxDims> to{};
  int64_t row = 0;
  bool empty = false;

  // Its last axis; a single row if there is none.
  struct Inner {
    int64_t count = 1;
    int64_t from = 0;
    int64_t to = 0;
  };
  Inner inner() const {
    if (dims == 0) return {};
    const auto last = static_cast<size_t>(dims - 1);
    return {extent[last], from[last], to[last]};
  }

  void Push(int64_t axis_extent, int64_t from_stride, int64_t to_stride) {
    if (dims > 0) {
      const auto last = static_cast<size_t>(dims - 1);
      if (from[last] == axis_extent * from_stride && to[last] == axis_extent * to_stride) {
        extent[last] *= axis_extent;
        from[last] = from_stride;
        to[last] = to_stride;
        return;
      }
    }
    const auto next = static_cast<size_t>(dims++);
    extent[next] = axis_extent;
    from[next] = from_stride;
    to[next] = to_stride;
  }
};

Nest MakeNest(const Coords& extent, const Coords& from, const Coords& to, int64_t elem_bytes) {
  Nest nest;
  nest.row = elem_bytes;
  for (int axis = 0; axis < extent.dims(); ++axis) {
    if (extent[axis] == 0) nest.empty = true;
    if (extent[axis] > 1) nest.Push(extent[axis], from[axis] * elem_bytes, to[axis] * elem_bytes);
  }
  if (nest.dims > 0) {
    const auto last = static_cast<size_t>(nest.dims - 1);
    if (nest.from[last] == elem_bytes && nest.to[last] == elem_bytes) {
      nest.row *= nest.extent[last];
      --nest.dims;
    }
  }
  return nest;
}

// From this length on, rows that nobody reads soon go past the caches, where the processor can do
// that: what is overwritten is then not read first, which saves a third of the memory traffic.
constexpr int64_t kShortestStreamedRow = 4096;

#if defined(__SSE2__)
void StreamRow(const std::byte* from, std::byte* to, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const auto address = reinterpret_cast<uintptr_t>(to);
  int64_t at = static_cast<int64_t>(-address % static_cast<uintptr_t>(kLine));
  std::memcpy(to, from, static_cast<size_t>(at));
  for (; at + kLine <= bytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}
// Makes all that was streamed visible to other threads before what this one writes next.
void EndStream() { _mm_sfence(); }
#else
void StreamRow(const std::byte* from, std::byte* to, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void EndStream() {}
#endif

// The innermost loop, with the row length known to the compiler where rows are single elements.
template <class RowBytes>
void CopyRows(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride,
              int64_t count, RowBytes row) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(row));
  }
}

void CopyInnermost(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride,
                   int64_t count, int64_t row) {
  switch (row) {
    case 1:
      return CopyRows(from, from_stride, to, to_stride, count,
                      std::integral_constant<int64_t, 1>());
    case 2:
      return CopyRows(from, from_stride, to, to_stride, count,
                      std::integral_constant<int64_t, 2>());
    case 4:
      return CopyRows(from, from_stride, to, to_stride, count,
                      std::integral_constant<int64_t, 4>());
    case 8:
      return CopyRows(from, from_stride, to, to_stride, count,
                      std::integral_constant<int64_t, 8>());
    default:
      return CopyRows(from, from_stride, to, to_stride, count, row);
  }
}

// Calls visit(from offset, to offset) for every index of the axes before the last one.
template <class Visit>
void ForEachOuter(const Nest& nest, const Visit& visit) {
  std::array<int64_t, kMaxDims> index{};
  int64_t from = 0;
  int64_t to = 0;
  while (true) {
    visit(from, to);
    int axis = nest.dims - 2;
    for (; axis >= 0; --axis) {
      const auto a = static_cast<size_t>(axis);
      from += nest.from[a];
      to += nest.to[a];
      if (++index[a] < nest.extent[a]) break;
      from -= nest.extent[a] * nest.from[a];
      to -= nest.extent[a] * nest.to[a];
      index[a] = 0;
    }
    if (axis < 0) return;
  }
}

void RunNest(const Nest& nest, const std::byte* from, std::byte* to) {
  if (nest.empty) return;
  const Nest::Inner inner = nest.inner();
  ForEachOuter(nest, [&](int64_t from_offset, int64_t to_offset) {
    CopyInnermost(from + from_offset, inner.from, to + to_offset, inner.to, inner.count, nest.row);
  });
}

// Precondition: rows of at least kShortestStreamedRow bytes.
void StreamNest(const Nest& nest, const std::byte* from, std::byte* to) {
  if (nest.empty) return;
  const Nest::Inner inner = nest.inner();
  ForEachOuter(nest, [&](int64_t from_offset, int64_t to_offset) {
    for (int64_t i = 0; i < inner.count; ++i)
      StreamRow(from + from_offset + i * inner.from, to + to_offset + i * inner.to, nest.row);
  });
  EndStream();
}

template <class Span>
auto* Start(Span buffer, const Region& region) {
  return buffer.data() + region.offset * region.elem_bytes;
}

}  // namespace

bool IsDense(const Region& region) {
  int64_t expected = 1;
  for (int axis = region.extent.dims() - 1; axis >= 0; --axis) {
    if (region.extent[axis] == 0) return true;
    if (region.extent[axis] > 1 && region.strides[axis] != expected) return false;
    expected *= region.extent[axis];
  }
  return true;
}

bool Fits(const Region& region, ByteCount bytes) {
  int64_t last = region.offset;
  for (int axis = 0; axis < region.extent.dims(); ++axis) {
    if (region.extent[axis] == 0) return true;
    if (region.strides[axis] < 0) return false;
    last += (region.extent[axis] - 1) * region.strides[axis];
  }
  return region.offset >= 0 && (last + 1) * region.elem_bytes <= bytes;
}

void Pack(ConstByteSpan buffer, const Region& region, ByteSpan run) {
  DT_CHECK(static_cast<ByteCount>(run.size()) == region.bytes());
  RunNest(MakeNest(region.extent, region.strides, vps::RowMajorStrides(region.extent),
                   region.elem_bytes),
          Start(buffer, region), run.data());
}

void Unpack(ConstByteSpan run, const Region& region, ByteSpan buffer) {
  DT_CHECK(static_cast<ByteCount>(run.size()) == region.bytes());
  RunNest(MakeNest(region.extent, vps::RowMajorStrides(region.extent), region.strides,
                   region.elem_bytes),
          run.data(), Start(buffer, region));
}

void CopyRegion(ConstByteSpan from_buffer, const Region& from, ByteSpan to_buffer,
                const Region& to) {
  DT_CHECK(from.extent == to.extent && from.elem_bytes == to.elem_bytes);
  const Nest nest = MakeNest(from.extent, from.strides, to.strides, from.elem_bytes);
  if (nest.row >= kShortestStreamedRow) {
    StreamNest(nest, Start(from_buffer, from), Start(to_buffer, to));
  } else {
    RunNest(nest, Start(from_buffer, from), Start(to_buffer, to));
  }
}

void FillRegion(ByteSpan buffer, const Region& region, std::byte value) {
  const Nest nest = MakeNest(region.extent, region.strides, region.strides, region.elem_bytes);
  if (nest.empty) return;
  std::byte* start = Start(buffer, region);
  const Nest::Inner inner = nest.inner();
  ForEachOuter(nest, [&](int64_t offset, int64_t) {
    for (int64_t i = 0; i < inner.count; ++i) {
      std::memset(start + offset + i * inner.from, std::to_integer<int>(value),
                  static_cast<size_t>(nest.row));
    }
  });
}

// Feeds the hash with the rows of the region; short rows are gathered first.
class RegionHasher::Rows {
 public:
  Rows() { XXH3_64bits_reset(&state_); }
  void Add(const std::byte* row, int64_t bytes) {
    if (bytes > kGather / 4) {
      Flush();
      XXH3_64bits_update(&state_, row, static_cast<size_t>(bytes));
      return;
    }
    if (used_ + bytes > kGather) Flush();
    std::memcpy(gathered_.data() + used_, row, static_cast<size_t>(bytes));
    used_ += bytes;
  }
  uint64_t Finish() {
    Flush();
    const uint64_t hash = XXH3_64bits_digest(&state_);
    XXH3_64bits_reset(&state_);
    return hash;
  }

 private:
  static constexpr int64_t kGather = 4096;
  void Flush() {
    if (used_ > 0) XXH3_64bits_update(&state_, gathered_.data(), static_cast<size_t>(used_));
    used_ = 0;
  }
  XXH3_state_t state_;
  std::array<std::byte, kGather> gathered_;
  int64_t used_ = 0;
};

RegionHasher::RegionHasher() : rows_(std::make_unique<Rows>()) {}
RegionHasher::~RegionHasher() = default;

void RegionHasher::Add(ConstByteSpan buffer, const Region& region) {
  const Nest nest = MakeNest(region.extent, region.strides, region.strides, region.elem_bytes);
  if (nest.empty) return;
  const std::byte* start = Start(buffer, region);
  const Nest::Inner inner = nest.inner();
  ForEachOuter(nest, [&](int64_t offset, int64_t) {
    for (int64_t i = 0; i < inner.count; ++i) rows_->Add(start + offset + i * inner.from, nest.row);
  });
}

uint64_t RegionHasher::Finish() { return rows_->Finish(); }

uint64_t HashRegion(ConstByteSpan buffer, const Region& region) {
  RegionHasher hasher;
  hasher.Add(buffer, region);
  return hasher.Finish();
}

}  // namespace dynatrain::engine
