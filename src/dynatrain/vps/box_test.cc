#include "dynatrain/vps/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "dynatrain/base/random.h"

namespace dynatrain::vps {
namespace {

using ::testing::ElementsAre;

static_assert(!std::is_convertible_v<int64_t, Box>);
static_assert(!std::is_convertible_v<std::span<const int64_t>, Coords>);
static_assert(std::is_trivially_copyable_v<Box>);

std::vector<Box> FlatRangeBoxes(const Box& within, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  AppendFlatRangeBoxes(within, begin, end, &boxes);
  return boxes;
}

TEST(Box, ScalarIsOneElement) {
  const Box scalar;
  EXPECT_EQ(scalar.elems(), 1);
  EXPECT_FALSE(scalar.empty());
  EXPECT_EQ(scalar.ToString(), "[]");
  EXPECT_EQ(Intersect(scalar, scalar), scalar);
  EXPECT_THAT(FlatRangeBoxes(scalar, 0, 1), ElementsAre(scalar));
  EXPECT_THAT(FlatRangeBoxes(scalar, 0, 0), ElementsAre());
}

TEST(Box, IntersectsAsTheHeaderShows) {
  const Box rows({2, 0}, {4, 8});
  const Box columns({0, 4}, {6, 8});
  EXPECT_EQ(Intersect(rows, columns), Box({2, 4}, {4, 8}));
  EXPECT_TRUE(Overlaps(rows, columns));
  EXPECT_EQ(rows.ToString(), "[2:4, 0:8]");
}

TEST(Box, EmptyBoxesHoldNothingAndLieInEverything) {
  const Box box({1, 1}, {3, 3});
  const Box empty({5, 0}, {5, 9});
  EXPECT_TRUE(empty.empty());
  EXPECT_TRUE(box.Contains(empty));
  EXPECT_FALSE(Overlaps(box, empty));
  EXPECT_TRUE(Intersect(box, Box({7, 7}, {9, 9})).empty());
  EXPECT_EQ(Box({3, 0}, {1, 4}).elems(), 0);
}

TEST(Box, FlatRangesOfTheHeader) {
  EXPECT_THAT(FlatRangeBoxes(Box::Whole({3, 4}), 2, 9),
              ElementsAre(Box({0, 2}, {1, 4}), Box({1, 0}, {2, 4}), Box({2, 0}, {3, 1})));
  EXPECT_THAT(FlatRangeBoxes(Box::Whole({4, 4}), 4, 12), ElementsAre(Box({1, 0}, {3, 4})));
  EXPECT_THAT(FlatRangeBoxes(Box::Whole({4, 4}), 5, 7), ElementsAre(Box({1, 1}, {2, 3})));
}

TEST(BoxProperty, FlatRangeBoxesHoldExactlyTheRange) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Coords lo = Coords::Filled(static_cast<int>(random.Between(0, 4)), 0);
    Coords hi = lo;
    for (int axis = 0; axis < lo.dims(); ++axis) {
      lo[axis] = random.Between(0, 5);
      hi[axis] = lo[axis] + random.Between(0, 4);
    }
    const Box within(lo, hi);
    const int64_t begin = random.Between(0, within.elems());
    const int64_t end = random.Between(begin, within.elems());
    const std::vector<Box> boxes = FlatRangeBoxes(within, begin, end);
    EXPECT_LE(static_cast<int>(boxes.size()), std::max(2 * within.dims() - 1, 1));
    int64_t next = begin;  // boxes in order are the range in order
    for (const Box& box : boxes) {
      EXPECT_TRUE(within.Contains(box));
      EXPECT_EQ(FlatIndex(within, box.lo()), next);
      Coords last = box.hi();
      for (int axis = 0; axis < last.dims(); ++axis) --last[axis];
      next += box.elems();
      EXPECT_EQ(FlatIndex(within, last), next - 1);  // so the box is a run of whole inner rows
    }
    EXPECT_EQ(next, end);
  }
}

TEST(BoxProperty, IntersectionIsWhatBothContain) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const auto box = [&] {
      Coords lo = {random.Between(0, 5), random.Between(0, 5)};
      return Box(lo, {lo[0] + random.Between(0, 4), lo[1] + random.Between(0, 4)});
    };
    const Box a = box();
    const Box b = box();
    const Box common = Intersect(a, b);
    int64_t both = 0;
    for (int64_t x = 0; x < 10; ++x) {
      for (int64_t y = 0; y < 10; ++y) {
        EXPECT_EQ(common.Contains(Coords{x, y}),
                  a.Contains(Coords{x, y}) && b.Contains(Coords{x, y}));
        both += common.Contains(Coords{x, y}) ? 1 : 0;
      }
    }
    EXPECT_EQ(common.elems(), both);
    EXPECT_EQ(Overlaps(a, b), both > 0);
    EXPECT_EQ(a.Contains(b), b.empty() || common == b);
  }
}

}  // namespace
}  // namespace dynatrain::vps
