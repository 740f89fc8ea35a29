// What is refused, and that the message names rule, tensor, axis and values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/vps/shard_map.h"
#include "dynatrain/vps/testing_maps.h"

namespace dynatrain::vps {
namespace {

using ::testing::AllOf;
using testing::CatalogWith;
using ::testing::HasSubstr;
using testing::Matrix;
using Holding = ExplicitShardMap::Holding;

std::string ErrorOf(const std::shared_ptr<const StateCatalog>& catalog, std::string_view spec) {
  const auto layout = ParseLayout(spec);
  EXPECT_TRUE(layout.ok()) << layout.status().ToString();
  const auto map = LayoutShardMap::Make(catalog, *layout);
  EXPECT_FALSE(map.ok()) << spec;
  return map.ok() ? "" : map.status().message();
}

std::string SpecError(std::string_view spec, std::optional<int32_t> num_ranks = std::nullopt) {
  const auto layout = ParseLayout(spec, num_ranks);
  EXPECT_FALSE(layout.ok()) << spec;
  return layout.ok() ? "" : layout.status().message();
}

Holding Holds(RankId rank, const StateCatalog& catalog, const std::vector<Box>& boxes) {
  Holding holding{rank, {}, {}};
  for (const Box& box : boxes) {
    const StateTensor& tensor = catalog.tensor(0);
    holding.shards.push_back({.tensor = 0,
                              .box = box,
                              .buffer = static_cast<BufferIndex>(holding.buffers.size()),
                              .offset = 0,
                              .strides = RowMajorStrides(box.shape())});
    holding.buffers.push_back({.name = "b",
                               .kind = tensor.kind,
                               .dtype = tensor.dtype,
                               .elems = std::max<int64_t>(box.elems(), 1)});
  }
  return holding;
}

TEST(BadInput, LayoutsThatCutAcrossADeclaredBlock) {
  for (const Split& split : {Split::Balanced(1, 4), Split::Chunk(1, 4)}) {
    const auto catalog = CatalogWith({Matrix("layers.3.qkv", {2, 12, 5}, split)});
    EXPECT_TRUE(LayoutShardMap::Make(catalog, *ParseLayout("tp=3")).ok());
    EXPECT_THAT(
        ErrorOf(catalog, "tp=5"),
        AllOf(HasSubstr("tensor layers.3.qkv: axis 1 of 12 in blocks of 4"), HasSubstr("tp=5"),
              HasSubstr(std::string(SplitRuleName(split.rule))), HasSubstr("the cut at 3")));
  }
  Parameter experts = Matrix("experts.gate_up", {6, 2, 6}, Split::Balanced(2, 3));
  experts.experts = Experts::Stack(0);
  const auto catalog = CatalogWith({experts});
  EXPECT_TRUE(LayoutShardMap::Make(catalog, *ParseLayout("dp=4,ep=2,etp=2")).ok());
  EXPECT_THAT(ErrorOf(catalog, "dp=3,etp=3"),
              AllOf(HasSubstr("experts.gate_up"), HasSubstr("axis 2 of 6 in blocks of 3"),
                    HasSubstr("etp=3"), HasSubstr("the cut at 2")));
}

TEST(BadInput, SplitsThatTheDegreeDoesNotFit) {
  Parameter groups = Matrix("kv", {3, 4, 2}, Split::Groups(0, 2));
  groups.row_axes = 2;
  EXPECT_THAT(ErrorOf(CatalogWith({groups}), "tp=4"),
              AllOf(HasSubstr("tensor kv: 3 groups of axis 0"), HasSubstr("tp=4")));
  EXPECT_THAT(ErrorOf(CatalogWith({Matrix("w", {6, 2}, Split::Explicit(0, {4, 2}))}), "tp=3"),
              AllOf(HasSubstr("tensor w: axis 0 is declared in 2 parts"), HasSubstr("tp=3")));
}

TEST(BadInput, HoldersThatOverlapOrAreMissingInAList) {
  const auto catalog = CatalogWith(
      {Matrix("w", {4, 6}, Split::None(), Home::Layer(0), {{Kind::kParam, DType::kF32}})});
  const auto error = [&](std::vector<Holding> holdings) {
    const auto map = ExplicitShardMap::Make(catalog, std::move(holdings));
    EXPECT_FALSE(map.ok());
    return map.ok() ? "" : map.status().message();
  };
  EXPECT_EQ(error({Holds(0, *catalog, {Box({0, 0}, {2, 6})}),
                   Holds(7, *catalog, {Box({2, 0}, {4, 4}), Box({3, 3}, {4, 6})})}),
            "tensor w/param: rank 7 holds box [3:4, 3:4] in two shards");
  EXPECT_EQ(
      error({Holds(0, *catalog, {Box({0, 0}, {2, 6})}), Holds(2, *catalog, {Box({2, 0}, {4, 5})})}),
      "tensor w/param: none of the ranks 0+2 holds box [2:4, 5:6]");
  // C01: an empty slice where there are real elements is no slice.
  EXPECT_EQ(
      error({Holds(0, *catalog, {Box({0, 0}, {2, 6})}), Holds(1, *catalog, {Box({2, 0}, {2, 6})})}),
      "tensor w/param, rank 1, box [2:2, 0:6]: a shard is never empty");
  EXPECT_EQ(error({Holds(0, *catalog, {Box({0, 0}, {2, 6})}), Holds(1, *catalog, {})}),
            "tensor w/param: none of the ranks 0-1 holds box [2:4, 0:6]");
}

// Unreduced gradients: the copies of different ranks are summands, not replicas.
TEST(BadInput, ReplicasThatAreDeclaredUnequal) {
  std::vector<KindSpec> kinds = {{Kind::kParam, DType::kF32},
                                 {Kind::kGrad, DType::kF32, Content::kPartialSums}};
  const auto catalog =
      CatalogWith({Matrix("w", {4, 6}, Split::Balanced(0), Home::Layer(0), kinds)});
  EXPECT_EQ(ErrorOf(catalog, "tp=2,dp=3"),
            "tensor w/grad: its copies are declared partial sums, so the ranks 0+2+4 that hold "
            "[0:2, 0:6] are no replicas; reduce them first");
  EXPECT_TRUE(LayoutShardMap::Make(catalog, *ParseLayout("tp=2")).ok());
  EXPECT_TRUE(LayoutShardMap::Make(catalog, *ParseLayout("tp=2,dp=3,zero=2")).ok());
  const auto one = CatalogWith({Matrix("w", {4, 6}, Split::None(), Home::Layer(0),
                                       {{Kind::kGrad, DType::kF32, Content::kPartialSums}})});
  const auto list = ExplicitShardMap::Make(
      one, {Holds(3, *one, {Box({0, 0}, {3, 6})}), Holds(5, *one, {Box({2, 0}, {4, 6})})});
  EXPECT_EQ(list.status().message(),
            "tensor w/grad: its copies are declared partial sums, so the ranks 3+5 that hold "
            "[2:3, 0:6] are no replicas; reduce them first");
}

TEST(BadInput, StateThatCannotBeCutByElement) {
  const auto kinds = [](Kind kind) {
    return std::vector<KindSpec>{{Kind::kParam, DType::kF32}, {kind, DType::kF32, Content::kWhole}};
  };
  const auto split =
      CatalogWith({Matrix("w", {4, 6}, Split::Balanced(1), Home::Layer(0), kinds(Kind::kExpAvg))});
  EXPECT_EQ(ErrorOf(split, "tp=2"),
            "tensor w/exp_avg: it is declared whole and cannot be cut by element, but axis 1 of 6 "
            "is cut (balanced over tp=2): rank 0 has [0:4, 0:3]");
  EXPECT_TRUE(LayoutShardMap::Make(split, *ParseLayout("pp=1,dp=5")).ok());
  EXPECT_EQ(ErrorOf(split, "dp=2,zero=1"),
            "tensor w/exp_avg: it is declared whole and cannot be cut by element, but axis 0 of 4 "
            "is cut (zero=1 over 2 data-parallel positions): rank 0 has [0:2, 0:6]");
  Parameter expert =
      Matrix("e", {3, 6}, Split::Balanced(1), Home::Layer(0), kinds(Kind::kExpAvgSq));
  expert.experts = Experts::Stack(0);
  EXPECT_THAT(ErrorOf(CatalogWith({expert}), "dp=2,ep=2"),
              AllOf(HasSubstr("tensor e/exp_avg_sq"), HasSubstr("axis 0 of 3"),
                    HasSubstr("balanced over ep=2")));
  const auto one = CatalogWith({Matrix("w", {4, 6}, Split::None(), Home::Layer(0),
                                       {{Kind::kExpAvg, DType::kU8, Content::kWhole}})});
  EXPECT_EQ(ExplicitShardMap::Make(
                one, {Holds(0, *one, {Box({0, 0}, {4, 3})}), Holds(1, *one, {Box({0, 3}, {4, 6})})})
                .status()
                .message(),
            "tensor w/exp_avg: it is declared whole and cannot be cut by element, but axis 1 of 6 "
            "is cut: rank 0 has [0:4, 0:3]");
}

TEST(BadInput, ContentIsPartOfTheCatalogsFingerprint) {
  const auto print = [](Content content) {
    return CatalogWith({Matrix("w", {4}, Split::None(), Home::Layer(0),
                               {{Kind::kParam, DType::kF32, content}})})
        ->Fingerprint();
  };
  EXPECT_NE(print(Content::kElements), print(Content::kWhole));
  EXPECT_NE(print(Content::kPartialSums), print(Content::kWhole));
}

TEST(BadInput, WrongRankLists) {
  EXPECT_EQ(SpecError("dp=2,ranks=3+3"), "ranks=3+3 names rank 3 twice");
  EXPECT_EQ(SpecError("dp=3,ranks=0-1"), "ranks=0-1 has 2 ranks, tp=1,pp=1,dp=3 needs 3");
  EXPECT_EQ(SpecError("dp=2,ranks=0+9", 8), "ranks=0+9 names rank 9, the job has ranks 0 to 7");
  EXPECT_THAT(SpecError("dp=2,ranks=1-x"), HasSubstr("'1-x' is neither a rank nor"));
  Layout negative{.dp = 2, .ranks = {0, -4}};
  EXPECT_EQ(negative.ValidateRanks(std::nullopt).message(), "ranks: -4 is no rank");
}

TEST(BadInput, DuplicateNames) {
  StateCatalog catalog;
  EXPECT_TRUE(catalog.Add(Matrix("layers.0.w", {4}, Split::None())).ok());
  EXPECT_EQ(catalog.Add(Matrix("layers.0.w", {5}, Split::None())).message(),
            "parameter layers.0.w: is already in the catalog");
}

TEST(BadInput, SizesBeyondWhatCanBeCounted) {
  StateCatalog catalog;
  constexpr int64_t kHuge = int64_t{1} << 40;
  EXPECT_THAT(catalog.Add(Matrix("a", {kHuge, kHuge}, Split::None())).message(),
              AllOf(HasSubstr("parameter a"), HasSubstr("1099511627776 x 1099511627776"),
                    HasSubstr("2^62 elements")));
  EXPECT_THAT(catalog.Add(Matrix("b", {kHuge, 1 << 20}, Split::None())).message(),
              AllOf(HasSubstr("parameter b"), HasSubstr("2^62 bytes")));
  EXPECT_THAT(
      catalog.Add(Matrix("c", {4}, Split::Explicit(0, {INT64_MAX, INT64_MAX, 6}))).message(),
      AllOf(HasSubstr("parameter c"), HasSubstr("axis 0"), HasSubstr("more than 2^62")));
  EXPECT_THAT(catalog.Add(Matrix("d", {4}, Split::Padded(kHuge * 2))).message(),
              HasSubstr("split block 2199023255552 is more than 2^40"));
  Parameter deep = Matrix("e", {4}, Split::None());
  deep.homes = {Home::Layer(INT32_MAX)};
  EXPECT_THAT(catalog.Add(deep).message(), HasSubstr("home in layer 2147483647"));
  EXPECT_EQ(SpecError("tp=1048576,cp=1048576,pp=1048576,ranks=0-3"),
            "tp=1048576,cp=1048576,pp=1048576 need more than 1048576 ranks");
  EXPECT_THAT(SpecError("dp=4,zero_order=forward-contiguous-end:4294967296-endx:4294967296"),
              AllOf(HasSubstr("zero_order"), HasSubstr("2^48")));
  const auto wide = CatalogWith({Matrix("w", {2, kHuge * 1024}, Split::None(), Home::Layer(0),
                                        {{Kind::kParam, DType::kU8}})});
  EXPECT_THAT(ErrorOf(wide, "dp=1024,zero=3,zero_order=forward-dim0"),
              AllOf(HasSubstr("tensor w"), HasSubstr("2^58")));
}

TEST(BadInput, StagesThatLoseLayers) {
  std::vector<Parameter> layers;
  for (int32_t i = 0; i < 30; ++i) {
    layers.push_back(Matrix(fmt::format("layers.{}", i), {3}, Split::None()));
    layers.back().homes = {Home::Layer(i)};
  }
  EXPECT_EQ(ErrorOf(CatalogWith(layers), "pp=4,split=7+7+7+7"),
            "split=7+7+7+7 places 28 layers, the model has 30: layers 28 to 29 would be on no "
            "stage");
}

}  // namespace
}  // namespace dynatrain::vps
