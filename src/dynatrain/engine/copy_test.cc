#include "dynatrain/engine/copy.h"

#include <gtest/gtest.h>

#include <cstring>

#include "dynatrain/base/random.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dynatrain::engine {
namespace {

using vps::Coords;

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(Random* random, int64_t count) {
  Bytes bytes(static_cast<size_t>(count));
  for (std::byte& b : bytes) b = static_cast<std::byte>((*random)());
  return bytes;
}

// A region of `extent` in a buffer with holes, and the bytes that the buffer needs.
struct Placed {
  Region region;
  ByteCount buffer_bytes;
};

Placed RandomPlacement(Random* random, const Coords& extent, int32_t elem_bytes) {
  Region region{0, random->Between(0, 5), extent, Coords::Filled(extent.dims(), 0), elem_bytes};
  std::vector<int> axes;
  for (int axis = 0; axis < extent.dims(); ++axis) {
    axes.insert(axes.begin() + random->Between(0, static_cast<int64_t>(axes.size())), axis);
  }
  if (random->OneIn(2)) std::sort(axes.begin(), axes.end(), std::greater<>());
  int64_t stride = random->OneIn(3) ? random->Between(1, 3) : 1;
  for (const int axis : axes) {
    region.strides[axis] = stride;
    stride = stride * extent[axis] + (random->OneIn(2) ? 0 : random->Between(0, 4));
  }
  return {region, (region.offset + stride + 3) * elem_bytes};
}

Coords RandomExtent(Random* random) {
  Coords extent = Coords::Filled(static_cast<int>(random->Between(0, 4)), 1);
  for (int axis = 0; axis < extent.dims(); ++axis)
    extent[axis] = random->OneIn(20) ? 0 : random->Between(1, 6);
  return extent;
}

// The region's bytes in row-major order, one element at a time.
Bytes Gather(const Bytes& buffer, const Region& region) {
  Bytes run;
  const int64_t elems = vps::ElemCount(region.extent);
  for (int64_t i = 0; i < elems; ++i) {
    int64_t rest = i;
    int64_t place = region.offset;
    for (int axis = region.extent.dims() - 1; axis >= 0; --axis) {
      place += rest % region.extent[axis] * region.strides[axis];
      rest /= region.extent[axis];
    }
    const auto begin = buffer.begin() + place * region.elem_bytes;
    run.insert(run.end(), begin, begin + region.elem_bytes);
  }
  return run;
}

TEST(Copy, AllWaysAgreeWithElementByElement) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const Coords extent = RandomExtent(&random);
    const auto elem_bytes = static_cast<int32_t>(random.Between(1, 8));
    const Placed a = RandomPlacement(&random, extent, elem_bytes);
    const Placed b = RandomPlacement(&random, extent, elem_bytes);
    ASSERT_TRUE(Fits(a.region, a.buffer_bytes));
    const Bytes source = RandomBytes(&random, a.buffer_bytes);
    const Bytes want = Gather(source, a.region);

    Bytes run(want.size());
    Pack(source, a.region, run);
    EXPECT_EQ(run, want);
    Bytes unpacked = RandomBytes(&random, b.buffer_bytes);
    const Bytes untouched = unpacked;
    Unpack(run, b.region, unpacked);
    EXPECT_EQ(Gather(unpacked, b.region), want);
    Bytes copied = untouched;
    CopyRegion(source, a.region, copied, b.region);
    EXPECT_EQ(copied, unpacked);
    EXPECT_EQ(HashRegion(source, a.region), XXH3_64bits(want.data(), want.size()));
    EXPECT_EQ(HashRegion(unpacked, b.region), HashRegion(source, a.region));
    FillRegion(copied, b.region, std::byte{0xFF});
    EXPECT_EQ(Gather(copied, b.region), Bytes(want.size(), std::byte{0xFF}));
    // Nothing outside of the region was written.
    Bytes erased = untouched;
    FillRegion(erased, b.region, std::byte{0xFF});
    EXPECT_EQ(copied, erased);
    if (HasFailure()) return;
  }
}

// Rows that are long enough to go past the caches, at any alignment and of any length.
TEST(Copy, LongRowsAtAnyAlignment) {
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(fmt::format("copy {}", i));
    const Coords extent = {random.Between(1, 3), random.Between(4000, 9000)};
    const auto placed = [&] {
      const int64_t stride = extent[1] + random.Between(0, 70);
      Region region{0, random.Between(0, 130), extent, {stride, 1}, 1};
      return Placed{region, region.offset + extent[0] * stride + 70};
    };
    const Placed a = placed();
    const Placed b = placed();
    const Bytes source = RandomBytes(&random, a.buffer_bytes);
    Bytes copied = RandomBytes(&random, b.buffer_bytes);
    Bytes want = copied;
    Unpack(Gather(source, a.region), b.region, want);
    CopyRegion(source, a.region, copied, b.region);
    ASSERT_EQ(copied, want);
  }
}

TEST(Copy, HashOfLongAndShortRows) {
  Random random(7);
  const Bytes source = RandomBytes(&random, 1 << 20);
  for (const int64_t row : {1, 3, 255, 256, 257, 1024, 1025, 5000}) {
    const Region region{0, 1, {20, row}, {8000, 1}, 4};
    const Bytes want = Gather(source, region);
    EXPECT_EQ(HashRegion(source, region), XXH3_64bits(want.data(), want.size())) << row;
  }
}

TEST(Copy, SlabsAreTheRegionInOrder) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const Placed placed =
        RandomPlacement(&random, RandomExtent(&random), static_cast<int32_t>(random.Between(1, 8)));
    const Bytes source = RandomBytes(&random, placed.buffer_bytes);
    const ByteCount most = random.Between(1, 100);
    Bytes joined;
    ForEachSlab(placed.region, most, [&](const Region& slab) {
      EXPECT_LE(slab.bytes(), std::max<ByteCount>(most, slab.elem_bytes));
      const Bytes run = Gather(source, slab);
      joined.insert(joined.end(), run.begin(), run.end());
    });
    EXPECT_EQ(joined, Gather(source, placed.region));
    if (HasFailure()) return;
  }
}

TEST(Copy, DenseAndFits) {
  EXPECT_TRUE(IsDense({0, 5, {2, 3}, {3, 1}, 4}));
  EXPECT_TRUE(IsDense({0, 5, {1, 3}, {77, 1}, 4}));
  EXPECT_TRUE(IsDense({0, 0, {}, {}, 4}));
  EXPECT_FALSE(IsDense({0, 0, {2, 3}, {4, 1}, 4}));
  EXPECT_FALSE(IsDense({0, 0, {2, 3}, {1, 2}, 4}));
  EXPECT_TRUE(Fits({0, 1, {2, 3}, {3, 1}, 4}, 28));
  EXPECT_FALSE(Fits({0, 2, {2, 3}, {3, 1}, 4}, 28));
  EXPECT_FALSE(Fits({0, -1, {2, 3}, {3, 1}, 4}, 28));
}

}  // namespace
}  // namespace dynatrain::engine
