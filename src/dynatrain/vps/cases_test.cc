// Faults of the field (uneven sizes, padding, ties, fused weights) on state moved element by
// element through layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "dynatrain/vps/digest.h"
#include "dynatrain/vps/element_oracle.h"
#include "dynatrain/vps/shard_map.h"
#include "dynatrain/vps/testing_maps.h"

namespace dynatrain::vps {
namespace {

using testing::CatalogOf;
using testing::CatalogWith;
using testing::DistinctValue;
using testing::HeldElements;
using testing::MakeState;
using testing::MapOf;
using testing::OracleState;
using testing::Reshard;
using testing::State;

// Moves state from layout to layout; after each hop every element is where the oracle puts it,
// padding is zero.
void ExpectSurvives(const std::shared_ptr<const StateCatalog>& catalog,
                    const std::vector<std::string>& specs) {
  auto from = MapOf(catalog, specs[0]);
  State state = MakeState(*from, DistinctValue);
  EXPECT_EQ(state, OracleState(*from, DistinctValue)) << specs[0];
  for (size_t i = 1; i < specs.size(); ++i) {
    const auto to = MapOf(catalog, specs[i]);
    state = Reshard(*from, state, *to);
    EXPECT_EQ(state, OracleState(*to, DistinctValue)) << specs[i - 1] << " -> " << specs[i];
    from = to;
  }
}

TEST(CaseC01, RanksThatOwnOnlyPadding) {
  const auto five = CatalogOf().Add("w", {5}, Split::None(), {Home::Layer(0)}).Done();
  ExpectSurvives(five, {"dp=8,zero=1", "dp=2,zero=1", "dp=8,zero=1"});
  const auto map = MapOf(five, "dp=8,zero=1");
  for (RankId rank = 5; rank < 8; ++rank) {
    EXPECT_EQ(map->BuffersOf(rank)[1].elems, 1);
    EXPECT_EQ(map->ShardsOf(rank).size(), 1u) << "the replicated parameter alone";
  }
  const auto one = CatalogOf().Add("w", {}, Split::None(), {Home::Layer(0)}).Done();
  ExpectSurvives(one, {"dp=4,zero=1", "dp=1", "dp=4,zero=1", "dp=3,zero=1"});
}

TEST(CaseC01, AnEmptySliceOverRealElementsIsAnError) {
  const auto five = CatalogOf().Add("w", {5}, Split::None(), {Home::Layer(0)}).Done();
  const auto map = MapOf(five, "dp=8,zero=1");
  // Without the one element of `emptied`; ranks 5 to 7 have none to begin with.
  const auto without = [&](RankId emptied) {
    std::vector<ExplicitShardMap::Holding> holdings;
    for (const RankId rank : map->Ranks()) {
      holdings.push_back({rank, map->BuffersOf(rank), map->ShardsOf(rank)});
      if (rank != emptied) continue;
      std::erase_if(holdings.back().shards, [&](const Shard& shard) {
        return five->tensor(shard.tensor).kind == Kind::kExpAvg;
      });
    }
    return ExplicitShardMap::Make(five, holdings).status();
  };
  EXPECT_TRUE(without(6).ok());
  EXPECT_FALSE(without(3).ok());
  EXPECT_THAT(without(3).message(),
              ::testing::AllOf(::testing::HasSubstr("w/exp_avg"), ::testing::HasSubstr("[3:4]")));
}

TEST(CaseC02, FillerThatCrossesTheEndOfTheRealData) {
  const auto catalog = CatalogOf()
                           .Add("a", {7, 8}, Split::None(), {Home::Layer(0)})
                           .Add("b", {17}, Split::None(), {Home::Layer(0)})
                           .Add("c", {2}, Split::None(), {Home::Layer(0)})
                           .Done();
  const std::string rule =
      "zero_order=forward-contiguous-start:32-end:128";  // 0..55, 64..80, 96..97
  const auto four = MapOf(catalog, "dp=4,zero=1," + rule);
  EXPECT_EQ(four->BucketsOf(0, 0)[0].real_elems, 98);
  EXPECT_EQ(four->BucketsOf(0, 0)[0].elems, 128);
  EXPECT_EQ(HeldElements(*four, Kind::kExpAvg), 75);
  const std::vector<Shard> last = four->ShardsOf(3);
  EXPECT_EQ(std::count_if(last.begin(), last.end(), [&](const Shard& s) { return s.tensor == 7; }),
            1);
  ExpectSurvives(catalog, {"dp=4,zero=1," + rule, "dp=2,zero=1," + rule, "dp=3,zero=1",
                           "dp=4,zero=1," + rule});
}

TEST(CaseC03, AlignmentThatDependsOnTheDegree) {
  const auto catalog = CatalogOf()
                           .Add("a", {50}, Split::None(), {Home::Layer(0)})
                           .Add("b", {7}, Split::None(), {Home::Layer(0)})
                           .Done();
  const std::string rule = ",zero=1,zero_order=forward-bucketed-endx:2";
  EXPECT_EQ(MapOf(catalog, "dp=2" + rule)->BucketsOf(0, 0)[0].elems, 60);
  EXPECT_EQ(MapOf(catalog, "dp=3" + rule)->BucketsOf(0, 0)[0].elems, 60);
  EXPECT_EQ(MapOf(catalog, "dp=4" + rule)->BucketsOf(0, 0)[0].elems, 64);
  ExpectSurvives(catalog, {"dp=2" + rule, "dp=4" + rule, "dp=3" + rule, "dp=2" + rule});
}

TEST(CaseC04, OddDegreesAndBucketsPaddedOneByOne) {
  const auto catalog = CatalogOf()
                           .Add("a", {3, 6}, Split::None(), {Home::Layer(0)})
                           .Add("b", {17}, Split::None(), {Home::Layer(1)})
                           .Done();
  ExpectSurvives(catalog, {"dp=2,zero=1", "dp=3,zero=1", "dp=5,zero=1", "dp=7,zero=1",
                           "dp=1,zero=1", "dp=2,zero=1"});
  for (const int32_t dp : {2, 3, 5, 7}) {
    for (const Bucket& bucket : MapOf(catalog, fmt::format("dp={},zero=1", dp))->BucketsOf(0, 0)) {
      EXPECT_EQ(bucket.elems % dp, 0);
      EXPECT_LT(bucket.elems - bucket.real_elems, dp);
    }
  }
}

// Two ways to store a fused weight: groups of [q q k v] and plain [Q | K | V]. Logical shape
// [groups, 2 + 2, 2, 3].
TEST(CaseC05, TwoConventionsForOneFusedWeight) {
  const auto catalog =
      CatalogOf().Add("qkv", {4, 4, 2, 3}, Split::Balanced(0), {Home::Layer(0)}).Done();
  // Rank `tp` of `degree` holds [Q | K | V] of its groups, each dense.
  const auto concatenated = [&](int32_t degree) {
    std::vector<ExplicitShardMap::Holding> holdings;
    for (int32_t tp = 0; tp < degree; ++tp) {
      const int64_t groups = 4 / degree;
      ExplicitShardMap::Holding holding{tp, {}, {}};
      for (const StateTensor& tensor : catalog->tensors()) {
        const auto buffer = static_cast<BufferIndex>(holding.buffers.size());
        holding.buffers.push_back({"qkv", tensor.kind, tensor.dtype, groups * 4 * 6});
        int64_t offset = 0;
        for (const auto& [begin, end] :
             std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 3}, {3, 4}}) {
          const Box box({tp * groups, begin, 0, 0}, {(tp + 1) * groups, end, 2, 3});
          holding.shards.push_back({tensor.id, box, buffer, offset, RowMajorStrides(box.shape())});
          offset += box.elems();
        }
      }
      holdings.push_back(std::move(holding));
    }
    const auto map = ExplicitShardMap::Make(catalog, holdings);
    EXPECT_TRUE(map.ok()) << map.status().ToString();
    return *map;
  };
  const auto two = concatenated(2);
  const auto one = concatenated(1);
  const State state = Reshard(*two, MakeState(*two, DistinctValue), *one);
  std::vector<uint32_t> by_hand;  // all Q rows by head, then K, then V
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 3}, {3, 4}}) {
    for (int64_t group = 0; group < 4; ++group) {
      for (int64_t slot = begin; slot < end; ++slot) {
        for (int64_t i = 0; i < 6; ++i) {
          by_hand.push_back(static_cast<uint32_t>(DistinctValue({0, (group * 4 + slot) * 6 + i})));
        }
      }
    }
  }
  std::vector<uint32_t> moved(by_hand.size());
  std::memcpy(moved.data(), state.at(0).at(0).data(), state.at(0).at(0).size());
  EXPECT_EQ(moved, by_hand);
  const auto four = MapOf(catalog, "tp=4");
  EXPECT_EQ(Reshard(*one, state, *four), OracleState(*four, DistinctValue));
}

TEST(CaseC05, GateAndUpAsTwoHalves) {
  const auto catalog =
      CatalogOf().Add("gate_up", {2, 8, 3}, Split::Balanced(1), {Home::Layer(0)}).Done();
  ExpectSurvives(catalog, {"tp=2", "tp=1", "tp=4", "tp=3", "tp=2"});
  const State state =
      MakeState(*MapOf(catalog, "tp=2"), DistinctValue);  // [gate_1; up_1] on tp position 1
  uint32_t first_up = 0;
  std::memcpy(&first_up, state.at(1).at(0).data() + 4 * 3 * 4, 4);
  EXPECT_EQ(first_up, DistinctValue({0, 8 * 3 + 4 * 3}));
}

TEST(CaseC06, GateAndUpWhoseTensorParallelPartIsCutOverDp) {
  const auto catalog =
      CatalogOf().Add("w13", {2, 8, 3}, Split::Balanced(1), {Home::Layer(0)}).Done();
  ExpectSurvives(catalog, {"tp=2,dp=2,zero=1", "tp=1,dp=4,zero=1", "tp=1,dp=1"});
  ExpectSurvives(catalog,
                 {"tp=3,dp=5,zero=1", "tp=2,dp=3,zero=1", "tp=1,dp=7,zero=1", "tp=3,dp=5,zero=1"});
}

TEST(CaseC07, PhysicalSizeDividesLogicalSizeDoesNot) {
  // As a logical shape the split of F=3 is uneven but exact: 2 + 1 columns of gate and of up.
  ExpectSurvives(CatalogOf().Add("gate_up", {2, 3, 4}, Split::Balanced(1), {Home::Layer(0)}).Done(),
                 {"tp=1", "tp=2", "tp=3", "tp=1"});
  // Declared as indivisible blocks it is refused, though 2F divides.
  const auto blocked =
      CatalogOf().Add("gate_up", {2, 3, 4}, Split::Balanced(1, 3), {Home::Layer(0)}).Done();
  EXPECT_EQ(LayoutShardMap::Make(blocked, {.tp = 2}).status().message(),
            "tensor gate_up: axis 1 of 3 in blocks of 3 does not split over tp=2 (rule balanced): "
            "the cut at 2 falls inside a block");
  // Two groups of 4 rows and one gate row per group at the tail: rows 10, block 5 with its row
  // moved into the group.
  const auto tail =
      CatalogOf().Add("qkv_gate", {10, 4}, Split::Balanced(0, 5), {Home::Layer(0)}).Done();
  ExpectSurvives(tail, {"tp=1", "tp=2"});
  EXPECT_THAT(LayoutShardMap::Make(tail, {.tp = 4}).status().message(),
              ::testing::HasSubstr(
                  "tensor qkv_gate: axis 0 of 10 in blocks of 5 does not split over tp=4"));
}

TEST(CaseC08, DataAndTensorParallelOnOneUnevenDimension) {
  for (const int64_t extent : {5, 6, 9}) {
    for (const Split& split : {Split::Chunk(0), Split::Balanced(0)}) {
      const auto catalog = CatalogOf().Add("w", {extent}, split, {Home::Layer(0)}).Done();
      ExpectSurvives(catalog, {"tp=2,dp=2,zero=1", "tp=1,dp=4,zero=1", "tp=4", "dp=1"});
      for (const char* spec : {"tp=2,dp=2,zero=1", "tp=1,dp=4,zero=1", "tp=4,zero=1"}) {
        EXPECT_EQ(HeldElements(*MapOf(catalog, spec), Kind::kExpAvg), extent) << spec;
      }
    }
  }
}

TEST(CaseC09, ShardsOfSizeZero) {
  const auto catalog = CatalogOf()
                           .Add("six", {6, 2}, Split::Chunk(0), {Home::Layer(0)})
                           .Add("one", {1, 3}, Split::Chunk(0), {Home::Layer(0)})
                           .Done();
  ExpectSurvives(catalog,
                 {"tp=4", "tp=3", "tp=5", "tp=4", "tp=4,dp=3,zero=1", "tp=5,dp=2,zero=1", "tp=4"});
  const auto four = MapOf(catalog, "tp=4");
  EXPECT_TRUE(four->ShardsOf(3).empty());
  EXPECT_EQ(four->BuffersOf(3).size(), 3u);
  EXPECT_EQ(four->BuffersOf(3)[0].elems, 0);
}

TEST(CaseC10, UnevenStagesMoveEveryLayer) {
  const auto layers = [](int32_t count) {
    CatalogOf catalog;
    catalog.Add("embedding", {3, 2}, Split::Balanced(0), {Home::Embedding()});
    for (int32_t i = 0; i < count; ++i)
      catalog.Add(fmt::format("layers.{}", i), {3}, Split::None(), {Home::Layer(i)});
    catalog.Add("head", {3, 2}, Split::Balanced(0), {Home::Head()});
    return catalog.Done();
  };
  ExpectSurvives(layers(7), {"pp=1", "pp=2", "pp=3", "pp=2,split=1+6", "pp=3,split=0+7+0", "pp=1"});
  ExpectSurvives(layers(10), {"pp=3", "pp=2,dp=2,zero=1", "pp=3"});
  ExpectSurvives(layers(30), {"pp=4", "pp=1", "pp=4,split=7+8+8+7"});
}

TEST(CaseC12, TiedEmbeddingAcrossStages) {
  const auto catalog =
      CatalogOf()
          .Add("embedding", {6, 2}, Split::Balanced(0), {Home::Embedding(), Home::Head()})
          .Add("layers.0", {5}, Split::None(), {Home::Layer(0)})
          .Add("layers.1", {4}, Split::None(), {Home::Layer(1)})
          .Add("final_norm", {3}, Split::None(), {Home::Head()})
          .Done();
  ExpectSurvives(catalog, {"pp=1", "pp=2", "pp=4", "pp=1"});
  ExpectSurvives(catalog, {"pp=2,dp=3,zero=1", "pp=1,dp=2,zero=1",
                           "tp=2,pp=2,dp=2,zero=1,zero_order=reverse-contiguous"});
  const auto copies = [&](const std::string& spec) {
    return HeldElements(*MapOf(catalog, spec), Kind::kExpAvg) - 12;
  };
  EXPECT_EQ(copies("pp=1"), 12) << "one storage, one optimizer entry";
  EXPECT_EQ(copies("pp=2"), 24);
  EXPECT_EQ(copies("pp=4"), 24);
}

TEST(CaseC12, UnequalCopiesAreReported) {
  const auto catalog =
      CatalogOf()
          .Add("embedding", {6, 2}, Split::Balanced(0), {Home::Embedding(), Home::Head()})
          .Done();
  const auto map = MapOf(catalog, "pp=2,dp=2,zero=1");
  State state = MakeState(*map, DistinctValue);
  const auto replica_sum = [&] {
    StateDigest total;
    for (const RankId rank : map->Ranks()) {
      const BufferReader buffers = [&](BufferIndex b) {
        return ConstByteSpan(state.at(rank).at(static_cast<size_t>(b)));
      };
      total = Combine(total, DigestOfRank(*map, rank, buffers, 1));
    }
    return total.replica;
  };
  EXPECT_EQ(replica_sum(), 0u);
  state.at(3).at(1).at(8) ^= std::byte{1};  // one element of a moment on the last stage
  EXPECT_NE(replica_sum(), 0u);
}

TEST(CaseC14, EmptyTensorsAndMorePositionsThanHeads) {
  const auto catalog = CatalogOf()
                           .Add("empty", {0, 8}, Split::Balanced(0), {Home::Layer(0)})
                           .Add("kv", {2, 3, 4}, Split::Balanced(0), {Home::Layer(0)})
                           .Done();
  ExpectSurvives(catalog, {"tp=4", "tp=1,dp=3,zero=1", "tp=4,dp=2,zero=1", "tp=2"});
  int visits = 0;
  MapOf(catalog, "tp=4")->VisitHolders(0, Box::Whole({0, 8}), [&](const Box&, const HolderSet&) {
    ++visits;
  });
  EXPECT_EQ(visits, 0);
  for (const char* spec : {"tp=4", "tp=4,dp=2,zero=1", "dp=30,zero=1"}) {
    const auto map = MapOf(catalog, spec);
    for (const RankId rank : map->Ranks()) {
      for (const Shard& shard : map->ShardsOf(rank))
        EXPECT_GT(shard.box.elems(), 0) << spec << ", rank " << rank;
    }
  }
}

TEST(CaseC18, ParametersWithoutOptimizerState) {
  const std::vector<KindSpec> bare = {{Kind::kParam, DType::kF32}};
  const auto catalog =
      CatalogOf()
          .Add("p0", {7}, Split::None(), {Home::Layer(0)})
          .Add("p1", {5}, Split::None(), {Home::Layer(0)}, bare)
          .Add("p2", {3, 3}, Split::None(), {Home::Layer(0)}, Fp32AdamKinds(), false)
          .Add("p3", {4}, Split::None(), {Home::Layer(0)}, bare, false)
          .Add("p4", {2}, Split::None(), {Home::Layer(0)})
          .Done();
  ExpectSurvives(catalog, {"dp=2,zero=1", "dp=3,zero=1", "dp=1", "dp=2,zero=1"});
  const auto map = MapOf(catalog, "dp=2,zero=1");
  EXPECT_EQ(HeldElements(*map, Kind::kExpAvg), 7 + 9 + 2);
  EXPECT_EQ(catalog->Find(1, Kind::kExpAvg), std::nullopt);
  EXPECT_EQ(catalog->Find(3, Kind::kExpAvg), std::nullopt);
  const std::vector<Bucket> buckets = map->BucketsOf(0, 0);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_TRUE(buckets[0].trainable);
  EXPECT_FALSE(buckets[1].trainable);
}

// The same kinds of fault over experts, virtual stages and the other buffer rules.

Parameter Wide(std::string name, const Shape& shape, Split split, Home home) {
  return testing::Matrix(std::move(name), shape, std::move(split), home, Bf16AdamKinds());
}

TEST(CaseC05, PlainConcatenatedAndGroupedOrdersSplitAlike) {
  Parameter qkv = Wide("qkv", {4, 4, 2, 3}, Split::Groups(0, 2), Home::Layer(0));
  qkv.stored = StoredParts{1, {2, 1, 1}};
  ExpectSurvives(CatalogWith({qkv}), {"tp=2", "tp=1", "tp=4", "tp=8", "tp=3", "tp=8,dp=2,zero=1"});
}

TEST(CaseC06, RowChunksOfGateAndUp) {
  const auto catalog = CatalogWith({Wide("w13", {2, 8, 3}, Split::Balanced(1), Home::Layer(0))});
  const std::string dim0 = ",zero=3,zero_order=forward-dim0";
  ExpectSurvives(catalog, {"tp=2,dp=2" + dim0, "tp=1,dp=4" + dim0, "tp=1,dp=1", "tp=3,dp=5" + dim0,
                           "tp=2,dp=3" + dim0});
  // tp position 1 of 2 has gate rows 4..7, then up rows 4..7; its second half is the up rows.
  const std::vector<Shard> shards = MapOf(catalog, "tp=2,dp=2" + dim0)->ShardsOf(3);
  ASSERT_FALSE(shards.empty());
  EXPECT_EQ(shards[0].box, Box({1, 4, 0}, {2, 8, 3}));
}

TEST(CaseC08, RowChunksAndTensorParallelOnOneDimension) {
  const std::string dim0 = ",zero=3,zero_order=forward-dim0";
  for (const int64_t extent : {5, 6, 9}) {
    const auto catalog = CatalogWith({Wide("w", {extent, 2}, Split::Balanced(0), Home::Layer(0))});
    ExpectSurvives(catalog, {"tp=2,dp=2" + dim0, "tp=1,dp=4" + dim0, "tp=4", "dp=1"});
    EXPECT_EQ(HeldElements(*MapOf(catalog, "tp=2,dp=2" + dim0), Kind::kParam), 2 * extent);
  }
  // 5 rows: tp 0 has [0, 1 | 2], tp 1 has [3 | 4].
  const auto map = MapOf(CatalogWith({Wide("w", {5, 2}, Split::Balanced(0), Home::Layer(0))}),
                         "tp=2,dp=2" + dim0);
  EXPECT_EQ(map->ShardsOf(0)[0].box, Box({0, 0}, {2, 2}));
  EXPECT_EQ(map->ShardsOf(2)[0].box, Box({2, 0}, {3, 2}));
  EXPECT_EQ(map->ShardsOf(3)[0].box, Box({4, 0}, {5, 2}));
}

TEST(CaseC09, FsdpChunksOfSizeZero) {
  const std::string dim0 = ",zero=3,zero_order=forward-dim0";
  const auto catalog = CatalogWith({Wide("six", {6, 2}, Split::None(), Home::Layer(0)),
                                    Wide("one", {1, 2}, Split::None(), Home::Layer(0))});
  ExpectSurvives(catalog, {"dp=4" + dim0, "dp=3" + dim0, "dp=5" + dim0, "dp=4" + dim0});
  EXPECT_TRUE(MapOf(catalog, "dp=4" + dim0)->ShardsOf(3).empty());  // 2, 2, 2, 0 and 1, 0, 0, 0
}

TEST(CaseC11, VirtualStagesMoveEveryLayer) {
  std::vector<Parameter> layers;
  for (int32_t i = 0; i < 7; ++i) {
    layers.push_back(Wide(fmt::format("layers.{}", i), {3, 2}, Split::Balanced(0), Home::Layer(i)));
  }
  ExpectSurvives(CatalogWith(layers),
                 {"pp=2,vpp=2,split=2+2+2+1", "pp=2", "pp=1", "pp=3,vpp=2,dp=2,zero=1",
                  "pp=2,vpp=2,split=1+1+4+1,zero_order=megatron", "pp=1,vpp=4"});
}

TEST(CaseC12, TiedEmbeddingInMegatronsBuffers) {
  Parameter embedding = Wide("embedding", {10, 2}, Split::Padded(4), Home::Embedding());
  embedding.homes.push_back(Home::Head());
  const auto catalog =
      CatalogWith({embedding, Wide("layers.0", {9, 2}, Split::Balanced(0), Home::Layer(0)),
                   Wide("layers.1", {7}, Split::None(), Home::Layer(1))});
  ExpectSurvives(catalog, {"tp=2,pp=2,dp=3,zero=1,zero_order=megatron:8", "pp=1",
                           "tp=3,dp=2,zero=2", "pp=2,dp=3,zero=1,zero_order=megatron"});
}

TEST(CaseC14, FewerKeyValueHeadsThanPositions) {
  ExpectSurvives(CatalogWith({Wide("qkv", {2, 6, 3, 2}, Split::Groups(0, 2), Home::Layer(0)),
                              Wide("out", {5, 2, 4, 3}, Split::Groups(1, 0), Home::Layer(0))}),
                 {"tp=8", "tp=4,dp=2,zero=1", "tp=2", "tp=1,dp=3,zero=3", "tp=8"});
  Parameter rows = Wide("qkv", {2, 6, 3, 2}, Split::Rows(), Home::Layer(0));
  ExpectSurvives(CatalogWith({rows}), {"tp=8", "tp=5,dp=2,zero=1", "tp=1", "tp=3", "tp=8"});
}

TEST(Experts, MoveBetweenGridsAndForms) {
  Parameter stack = Wide("stack", {6, 2, 4, 3}, Split::Balanced(2), Home::Layer(0));
  stack.experts = Experts::Stack(0);
  std::vector<Parameter> parameters = {Wide("w", {4, 3}, Split::Balanced(0), Home::Layer(0)),
                                       stack};
  for (int32_t e = 0; e < 5; ++e) {
    Parameter one = Wide(fmt::format("experts.{}", e), {3, 4}, Split::Balanced(1), Home::Layer(0));
    one.experts = Experts::One(e, 5);
    parameters.push_back(one);
  }
  const auto catalog = CatalogWith(parameters);
  // EP2 -> EP1: the experts leave their own buffers for the dense ones.
  ExpectSurvives(catalog, {"dp=4,ep=2,zero=1", "dp=4,ep=1,zero=1", "tp=2,dp=2,ep=4,zero=1",
                           "tp=2,dp=2,ep=2,etp=2,zero=2", "tp=2,cp=2,dp=3,ep=6,etp=2,zero=3",
                           "tp=4,etp=4,zero=1", "dp=4,ep=2,zero=1"});
  EXPECT_EQ(MapOf(catalog, "dp=4,ep=2,zero=1")->BucketsOfRank(0)[1].name, "layers.0.experts");
  EXPECT_EQ(MapOf(catalog, "dp=4,zero=1")->BucketsOfRank(0).size(), 1u);
}

// 3 experts of gate and up, 4 columns each: 24 rows over five positions are 5, 5, 5, 5, 4; as three
// whole experts they are 1, 1, 1, 0, 0.
TEST(Experts, RowsOfAStackOverDim0) {
  Parameter stack = Wide("stack", {3, 2, 4, 6}, Split::Balanced(2), Home::Layer(0));
  stack.experts = Experts::Stack(0);
  const std::string spec = "dp=5,zero=3,zero_order=forward-dim0";
  const auto first_boxes = [&](RankId rank) {
    std::vector<Box> boxes;
    for (const Shard& shard : MapOf(CatalogWith({stack}), spec)->ShardsOf(rank)) {
      if (shard.tensor == 0) boxes.push_back(shard.box);
    }
    return boxes;
  };
  ASSERT_EQ(stack.row_axes, 3);
  EXPECT_EQ(first_boxes(0),
            (std::vector<Box>{Box({0, 0, 0, 0}, {1, 1, 4, 6}), Box({0, 1, 0, 0}, {1, 2, 1, 6})}));
  EXPECT_EQ(first_boxes(4), (std::vector<Box>{Box({2, 1, 0, 0}, {3, 2, 4, 6})}));
  stack.row_axes = 1;
  EXPECT_EQ(first_boxes(2), (std::vector<Box>{Box({2, 0, 0, 0}, {3, 2, 4, 6})}));
  EXPECT_TRUE(first_boxes(3).empty());
}

TEST(Padding, OfTheVocabularyBelongsToTheBuffers) {
  const auto catalog =
      CatalogWith({Wide("embedding", {10, 2}, Split::Padded(4), Home::Embedding())});
  ExpectSurvives(catalog, {"tp=1", "tp=2", "tp=3", "tp=4,dp=2,zero=1", "tp=1,dp=3,zero=3"});
  // ceil(10 / (4 * 2)) * 4 = 8 rows per position, of which the second has two real ones.
  const auto map = MapOf(catalog, "tp=2");
  EXPECT_EQ(map->BuffersOf(1)[0].elems, 16);
  EXPECT_EQ(map->ShardsOf(1)[0].box, Box({8, 0}, {10, 2}));
}

// Worked from Megatron-Core's rules: starts at multiples of 64, bucket ends at multiples of lcm(n,
// 128).
TEST(Megatron, BucketsByHand) {
  const auto catalog = CatalogWith({Wide("a", {100}, Split::None(), Home::Layer(0)),
                                    Wide("b", {30}, Split::None(), Home::Layer(0)),
                                    Wide("c", {200}, Split::None(), Home::Layer(1))});
  const std::vector<Bucket> buckets =
      MapOf(catalog, "dp=3,zero=1,zero_order=megatron:210")->BucketsOf(0, 0);
  ASSERT_EQ(buckets.size(), 2u);  // reverse: c at 0, b at 256 closes the bucket; a alone
  EXPECT_EQ(buckets[0].entries[0].parameter, 2);
  EXPECT_EQ(buckets[0].entries[1].offset, 256);
  EXPECT_EQ(buckets[0].real_elems, 286);
  EXPECT_EQ(buckets[0].elems, 384);
  EXPECT_EQ(buckets[1].entries[0].parameter, 0);
  EXPECT_EQ(buckets[1].elems, 384);
  EXPECT_EQ(MapOf(catalog, "dp=3,zero_order=megatron:210")->BucketsOf(0, 0)[0].elems, 230);
}

}  // namespace
}  // namespace dynatrain::vps
