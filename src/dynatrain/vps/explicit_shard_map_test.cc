#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {
namespace {

using Holding = ExplicitShardMap::Holding;

std::shared_ptr<const StateCatalog> OneWeight() {
  auto catalog = std::make_shared<StateCatalog>();
  EXPECT_TRUE(catalog
                  ->Add({.name = "w",
                         .shape = {4, 6},
                         .split = Split::None(),
                         .homes = {Home::Layer(0)},
                         .kinds = {{Kind::kParam, DType::kF32}}})
                  .ok());
  return catalog;
}

// A rank with the box of "w" in a buffer of its own, row-major.
Holding Holds(RankId rank, const Box& box) {
  return {rank,
          {{.name = "w", .kind = Kind::kParam, .dtype = DType::kF32, .elems = box.elems()}},
          {{.tensor = 0,
            .box = box,
            .buffer = 0,
            .offset = 0,
            .strides = RowMajorStrides(box.shape())}}};
}

std::string ErrorOf(std::vector<Holding> holdings) {
  const auto map = ExplicitShardMap::Make(OneWeight(), std::move(holdings));
  EXPECT_FALSE(map.ok());
  return map.status().message();
}

TEST(ExplicitShardMap, NamesElementsThatNobodyHolds) {
  const std::vector<Holding> holdings = {Holds(1, Box({0, 0}, {2, 6})),
                                         Holds(4, Box({2, 0}, {4, 5}))};
  EXPECT_EQ(ErrorOf(holdings), "tensor w/param: none of the ranks 1+4 holds box [2:4, 5:6]");
  const auto survivors = *ExplicitShardMap::Make(OneWeight(), holdings, true);
  int64_t held = 0;
  survivors->VisitHolders(0, Box::Whole({4, 6}), [&](const Box& part, const HolderSet& set) {
    held += part.elems();
    EXPECT_EQ(set.size(), 1);
  });
  EXPECT_EQ(held, 22);
  EXPECT_TRUE(survivors->ShardsOf(0).empty());
  EXPECT_THAT(survivors->Ranks(), ::testing::ElementsAre(1, 4));
}

TEST(ExplicitShardMap, PartsHaveConstantHolders) {
  const auto map = *ExplicitShardMap::Make(
      OneWeight(), {Holds(0, Box({0, 0}, {4, 4})), Holds(1, Box({0, 2}, {4, 6})),
                    Holds(2, Box({1, 0}, {2, 6}))});
  std::map<std::vector<RankId>, int64_t> elems;
  map->VisitHolders(0, Box({0, 0}, {4, 6}), [&](const Box& part, const HolderSet& set) {
    std::vector<RankId> ranks;
    for (int64_t i = 0; i < set.size(); ++i) ranks.push_back(set.At(i));
    elems[ranks] += part.elems();
  });
  const std::map<std::vector<RankId>, int64_t> expected = {
      {{0}, 6}, {{1}, 6}, {{0, 1}, 6}, {{0, 2}, 2}, {{1, 2}, 2}, {{0, 1, 2}, 2}};
  EXPECT_EQ(elems, expected);
}

TEST(ExplicitShardMap, RefusesByTensorBoxAndRank) {
  Holding overlapping = Holds(3, Box({0, 0}, {4, 4}));
  overlapping.buffers.push_back(
      {.name = "x", .kind = Kind::kParam, .dtype = DType::kF32, .elems = 24});
  overlapping.shards.push_back(
      {.tensor = 0, .box = Box({3, 3}, {4, 6}), .buffer = 1, .offset = 0, .strides = {6, 1}});
  EXPECT_EQ(ErrorOf({overlapping}), "tensor w/param: rank 3 holds box [3:4, 3:4] in two shards");
  EXPECT_EQ(ErrorOf({Holds(0, Box({0, 0}, {5, 6}))}),
            "tensor w/param, rank 0, box [0:5, 0:6]: outside the tensor [0:4, 0:6]");
  EXPECT_EQ(ErrorOf({Holds(0, Box({0, 0}, {0, 6}))}),
            "tensor w/param, rank 0, box [0:0, 0:6]: a shard is never empty");
  EXPECT_EQ(ErrorOf({Holds(2, Box::Whole({4, 6})), Holds(2, Box::Whole({4, 6}))}),
            "rank 2 is listed twice");
  EXPECT_EQ(ErrorOf({Holds(-1, Box::Whole({4, 6}))}), "rank -1 is no rank");
  Holding h = Holds(0, Box::Whole({4, 6}));
  h.shards[0].offset = 1;
  EXPECT_EQ(ErrorOf({h}),
            "tensor w/param, rank 0, box [0:4, 0:6]: offset 1 and strides reach outside buffer w "
            "of 24 elements");
  h.shards[0].offset = int64_t{1} << 62;
  h.shards[0].strides = {int64_t{1} << 62, 1};
  EXPECT_THAT(ErrorOf({h}), ::testing::HasSubstr("reach outside buffer w"));
  h = Holds(0, Box::Whole({4, 6}));
  h.shards[0].strides = {0, 1};
  EXPECT_EQ(ErrorOf({h}),
            "tensor w/param, rank 0, box [0:4, 0:6]: stride 0 of axis 0; strides are positive");
  h = Holds(0, Box::Whole({4, 6}));
  h.shards[0].buffer = 1;
  EXPECT_EQ(ErrorOf({h}), "tensor w/param, rank 0, box [0:4, 0:6]: buffer 1 of 1");
  h = Holds(0, Box::Whole({4, 6}));
  h.shards[0].tensor = 7;
  EXPECT_EQ(ErrorOf({h}), "rank 0: a shard names tensor 7, the catalog has 1");
  h = Holds(0, Box::Whole({4, 6}));
  h.buffers[0].dtype = DType::kBF16;
  EXPECT_EQ(ErrorOf({h}),
            "tensor w/param, rank 0, box [0:4, 0:6]: buffer w holds param in bf16, the tensor is "
            "param in fp32");
  h = Holds(0, Box::Whole({4, 6}));
  h.shards[0].box = Box({0}, {4});
  EXPECT_EQ(ErrorOf({h}), "tensor w/param, rank 0, box [0:4]: box and strides need 2 axes");
}

TEST(ExplicitShardMap, CopiesWhatSomeRanksHold) {
  const auto catalog = OneWeight();
  const auto map = *LayoutShardMap::Make(catalog, *ParseLayout("dp=3"));
  const auto survivors = *ExplicitShardMap::Copy(catalog, *map, {2, 0});
  EXPECT_THAT(survivors->Ranks(), ::testing::ElementsAre(0, 2));
  EXPECT_EQ(survivors->ShardsOf(2), map->ShardsOf(2));
  EXPECT_EQ(survivors->BuffersOf(2), map->BuffersOf(2));
  EXPECT_NE(survivors->Fingerprint(), (*ExplicitShardMap::Copy(catalog, *map, {}))->Fingerprint());
}

}  // namespace
}  // namespace dynatrain::vps
