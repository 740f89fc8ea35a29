#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "dynatrain/base/random.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {
namespace {

using Range = HolderSet::Range;
using Product = HolderSet::Product;

std::shared_ptr<const RankTable> Identity(int64_t size) {
  std::vector<RankId> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<const RankTable>(ranks);
}

std::vector<RankId> RanksOf(const HolderSet& set) {
  std::vector<RankId> ranks;
  for (int64_t i = 0; i < set.size(); ++i) ranks.push_back(set.At(i));
  EXPECT_EQ(set.List(), ranks);
  return ranks;
}

TEST(RankTable, FindsPositions) {
  const RankTable table({5, 0, 3});
  EXPECT_EQ(table.RankAt(0), 5);
  EXPECT_EQ(table.PositionOf(3), 2);
  EXPECT_EQ(table.PositionOf(1), std::nullopt);
  EXPECT_EQ(table.PositionOf(99), std::nullopt);
  EXPECT_EQ(table.PositionOf(-1), std::nullopt);
}

TEST(HolderSet, ListsProductsInAscendingPosition) {
  const HolderSet set(Identity(32), {{2, {{1, 2}, {8, 3}}}});
  EXPECT_THAT(RanksOf(set), ::testing::ElementsAre(2, 3, 10, 11, 18, 19));
  EXPECT_EQ(set.IndexOf(11), 3);
  EXPECT_EQ(set.IndexOf(12), std::nullopt);
  EXPECT_EQ(set.IndexOf(1), std::nullopt);
  EXPECT_EQ(set.IndexOf(26), std::nullopt);
}

TEST(HolderSet, ListsRanksNotPositions) {
  const HolderSet set(std::make_shared<const RankTable>(std::vector<RankId>{3, 1, 7}),
                      {{0, {{2, 2}}}});
  EXPECT_THAT(RanksOf(set), ::testing::ElementsAre(3, 7));
  EXPECT_TRUE(set.Contains(7));
  EXPECT_FALSE(set.Contains(1));
}

TEST(HolderSet, EqualSetsCompareEqual) {
  const auto table = Identity(64);
  const HolderSet eight(table, {{0, {{1, 8}}}});
  EXPECT_EQ(HolderSet(table, {{0, {{4, 2}, {2, 2}, {1, 2}}}}), eight);
  EXPECT_EQ(HolderSet(table, {{4, {{1, 4}}}, {0, {{1, 4}}}}), eight);
  EXPECT_EQ(HolderSet(table, {{0, {{2, 4}}}, {1, {{2, 4}}}}), eight);
  EXPECT_EQ(HolderSet::FromPositions(table, {0, 1, 2, 3, 4, 5, 6, 7}), eight);
  EXPECT_EQ(HolderSet(table, {{3, {{7, 1}}}}), HolderSet::FromPositions(table, {3}));
  EXPECT_NE(HolderSet(table, {{0, {{1, 4}}}}), eight);
  EXPECT_EQ(HolderSet(table, {{5, {{16, 2}}}, {9, {{16, 2}}}}).products().size(), 1u);
  EXPECT_EQ(HolderSet::FromPositions(table, {0, 1, 3}).products().size(), 3u);
}

TEST(HolderSet, KeepsUnionsThatAreNoProduct) {
  const auto table = Identity(64);
  const HolderSet interleaved(table, {{3, {{2, 3}}}, {0, {{2, 3}}}});
  EXPECT_THAT(RanksOf(interleaved), ::testing::ElementsAre(0, 2, 4, 3, 5, 7));
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(interleaved.IndexOf(interleaved.At(i)), i);
  EXPECT_THAT(RanksOf(HolderSet(table, {{5, {}}, {0, {{1, 2}}}})), ::testing::ElementsAre(0, 1, 5));
}

// Any product, however it is written, has one form; any list keeps its ranks in order.
TEST(HolderSetProperty, FormIsCanonical) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<Range> ranges;
    int64_t span = 0;
    for (int64_t i = random.Between(0, 3); i > 0; --i) {
      const int64_t stride = span + random.Between(1, 3);
      const int64_t count = random.Between(1, 4);
      ranges.push_back({stride, count});
      span += stride * (count - 1);
    }
    const auto table = Identity(1000);
    const int64_t start = random.Between(0, 20);
    const HolderSet product(table, {{start, ranges}});
    const std::vector<RankId> ranks = RanksOf(product);
    EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
    EXPECT_EQ(std::set<RankId>(ranks.begin(), ranks.end()).size(), ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i)
      EXPECT_EQ(product.IndexOf(ranks[i]), static_cast<int64_t>(i));
    EXPECT_EQ(HolderSet::FromPositions(table, std::vector<int64_t>(ranks.begin(), ranks.end())),
              product);

    std::set<int64_t> some;
    for (int64_t i = random.Between(1, 12); i > 0; --i) some.insert(random.Between(0, 24));
    const HolderSet list = HolderSet::FromPositions(table, {some.begin(), some.end()});
    EXPECT_EQ(RanksOf(list), std::vector<RankId>(some.begin(), some.end()));
    for (RankId rank = 0; rank < 30; ++rank) EXPECT_EQ(list.Contains(rank), some.contains(rank));
  }
}

}  // namespace
}  // namespace dynatrain::vps
