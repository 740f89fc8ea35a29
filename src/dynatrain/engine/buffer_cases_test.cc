// Faults of the field whose subject is flat buffers, their slices and padding, through programs that
// are executed: after every hop each element is compared with what an oracle, or a list made by hand,
// tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/vps/element_oracle.h"

namespace dynatrain::engine {
namespace {

using ::testing::ElementsAre;
using testing::ExpectSurvives;
using testing::RunSwitch;
using testing::SwitchResult;
using vps::Home;
using vps::Kind;
using vps::LayoutShardMap;
using vps::Split;
using vps::testing::CatalogOf;
using vps::testing::HeldElements;
using vps::testing::MapOf;
using vps::testing::State;

// Sizes of one kind's buffers on each rank: [rank][bucket].
std::vector<std::vector<int64_t>> SlicesOf(const LayoutShardMap& map, Kind kind) {
  std::vector<std::vector<int64_t>> slices;
  for (const RankId rank : map.Ranks()) {
    std::vector<int64_t>& of_rank = slices.emplace_back();
    for (const vps::Buffer& buffer : map.BuffersOf(rank)) {
      if (buffer.kind == kind) of_rank.push_back(buffer.elems);
    }
  }
  return slices;
}

TEST(CaseC01, RanksThatOwnOnlyPadding) {
  const auto five = CatalogOf().Add("w", {5}, Split::None(), {Home::Layer(0)}).Done();
  ExpectSurvives(five, {"dp=8,zero=1", "dp=2,zero=1", "dp=8,zero=1"});
  // Between two layouts in which ranks 5 to 7 have padding alone, their plans are empty.
  for (const Program& program : testing::CompileAll(
           *MapOf(five, "dp=8,zero=1"), *MapOf(five, "dp=8,zero=1,zero_order=reverse-contiguous"),
           {}, {0, 1, 2, 3, 4, 5, 6, 7})) {
    EXPECT_TRUE(program.phases[0].sends.empty() && program.phases[0].receives.empty());
  }
  // A group of one element beside another of five, each in a buffer of its own.
  const auto groups = CatalogOf()
                          .Add("decay", {5}, Split::None(), {Home::Layer(0)})
                          .Add("no_decay", {1}, Split::None(), {Home::Layer(0)})
                          .Done();
  const std::string own = ",zero=1,zero_order=forward-param";
  ExpectSurvives(groups, {"dp=4" + own, "dp=2" + own, "dp=4" + own, "dp=1", "dp=4" + own});
}

TEST(CaseC02, FillerThatCrossesTheEndOfTheRealData) {
  const std::string rule = ",zero=1,zero_order=forward-contiguous-end:128";
  const auto catalog = CatalogOf()
                           .Add("a", {50}, Split::None(), {Home::Layer(0)})
                           .Add("b", {6, 8}, Split::None(), {Home::Layer(0)})
                           .Done();
  ExpectSurvives(catalog, {"dp=4" + rule, "dp=2" + rule, "dp=4" + rule});
  for (const int32_t dp : {4, 2}) {
    const auto map = MapOf(catalog, fmt::format("dp={}{}", dp, rule));
    ASSERT_EQ(map->BucketsOf(0, 0).size(), 1U);
    EXPECT_EQ(map->BucketsOf(0, 0)[0].elems, 128);
    EXPECT_EQ(HeldElements(*map, Kind::kExpAvg), 98) << "exactly the real length";
    for (RankId rank = 0; rank < dp; ++rank) {
      for (const vps::Shard& shard : map->ShardsOf(rank)) {
        if (catalog->tensor(shard.tensor).kind != Kind::kExpAvg) continue;
        EXPECT_LE(rank * 128 / dp + shard.offset + shard.box.elems(), 98) << "ends past the data";
      }
    }
  }
}

// 57 elements padded to multiples of 2 x dp: 60 for dp 2 and 3, 64 for dp 4. Element i of the buffer
// is 1000 + i, with a fraction that tells the kinds apart.
TEST(CaseC03, AlignmentThatDependsOnTheDegree) {
  const auto catalog = CatalogOf()
                           .Add("a", {5, 4}, Split::None(), {Home::Layer(0)})
                           .Add("b", {37}, Split::None(), {Home::Layer(0)})
                           .Done();
  const std::vector<float> fraction = {0, 0.25F, 0.5F};  // param, exp_avg, exp_avg_sq
  const auto expected = [&](int32_t dp, size_t padded) {
    State state;
    for (RankId rank = 0; rank < dp; ++rank) {
      for (size_t kind = 0; kind < 3; ++kind) {
        const size_t slice = kind == 0 ? padded : padded / static_cast<size_t>(dp);
        const size_t begin = kind == 0 ? 0 : static_cast<size_t>(rank) * slice;
        std::vector<std::byte>& bytes = state[rank].emplace_back(slice * 4);
        for (size_t i = 0; i < slice && begin + i < 57; ++i) {
          const float value = 1000.0F + static_cast<float>(begin + i) + fraction[kind];
          std::memcpy(&bytes[i * 4], &value, 4);
        }
      }
    }
    return state;
  };
  const std::string rule = ",zero=1,zero_order=forward-contiguous-endx:2";
  State state = expected(2, 60);
  int32_t from = 2;
  for (const auto& [dp, padded] : {std::pair{4, 64}, {3, 60}, {2, 60}}) {
    SCOPED_TRACE(fmt::format("dp {} to {}", from, dp));
    const SwitchResult hop = RunSwitch(*MapOf(catalog, fmt::format("dp={}{}", from, rule)), state,
                                       *MapOf(catalog, fmt::format("dp={}{}", dp, rule)), {});
    ASSERT_TRUE(hop.ok()) << hop.ToString();
    EXPECT_EQ(hop.new_state, expected(dp, static_cast<size_t>(padded)));
    state = hop.new_state;
    from = dp;
  }
}

TEST(CaseC04, OddDegreesAndBucketsPaddedOneByOne) {
  const auto catalog = CatalogOf()
                           .Add("a", {3, 6}, Split::None(), {Home::Layer(0)})
                           .Add("b", {17}, Split::None(), {Home::Layer(1)})
                           .Done();
  struct Shape {
    int32_t dp;
    std::vector<int64_t> padded;             // of each bucket: what goes into its reduce-scatter
    std::vector<int64_t> slice;              // what each rank gets out of it
    std::vector<std::vector<int64_t>> real;  // real elements by rank, then bucket
  };
  const std::vector<Shape> shapes = {
      {2, {18, 18}, {9, 9}, {{9, 9}, {9, 8}}},
      {3, {18, 18}, {6, 6}, {{6, 6}, {6, 6}, {6, 5}}},
      {5, {20, 20}, {4, 4}, {{4, 4}, {4, 4}, {4, 4}, {4, 4}, {2, 1}}},
      {7, {21, 21}, {3, 3}, {{3, 3}, {3, 3}, {3, 3}, {3, 3}, {3, 3}, {3, 2}, {0, 0}}},
      {1, {18, 17}, {18, 17}, {{18, 17}}}};
  std::vector<std::string> specs;
  for (const Shape& s : shapes) specs.push_back(fmt::format("dp={},zero=1", s.dp));
  const State last = ExpectSurvives(catalog, specs);
  EXPECT_EQ(last.at(0).size(), 6U);
  for (const Shape& s : shapes) {
    SCOPED_TRACE(fmt::format("dp {}", s.dp));
    const auto map = MapOf(catalog, fmt::format("dp={},zero=1", s.dp));
    const std::vector<vps::Bucket> buckets = map->BucketsOf(0, 0);
    ASSERT_EQ(buckets.size(), 2U);
    for (size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(buckets[b].real_elems, b == 0 ? 18 : 17);
      EXPECT_EQ(buckets[b].elems, s.padded[b]);
      EXPECT_EQ(s.slice[b] * s.dp, s.padded[b]) << "the slices add up with the padding";
    }
    for (const Kind kind : {Kind::kExpAvg, Kind::kExpAvgSq}) {
      EXPECT_EQ(SlicesOf(*map, kind), std::vector(static_cast<size_t>(s.dp), s.slice));
    }
    for (RankId rank = 0; rank < s.dp; ++rank) {
      std::vector<int64_t> real(2);
      for (const vps::Shard& shard : map->ShardsOf(rank)) {
        const vps::StateTensor& tensor = catalog->tensor(shard.tensor);
        if (tensor.kind == Kind::kExpAvg)
          real[static_cast<size_t>(tensor.parameter)] += shard.box.elems();
      }
      EXPECT_EQ(real, s.real[static_cast<size_t>(rank)]) << "rank " << rank;
    }
  }
}

TEST(CaseC09, ShardsOfSizeZero) {
  const auto catalog = CatalogOf()
                           .Add("six", {6, 2}, Split::Chunk(0), {Home::Layer(0)})
                           .Add("one", {1, 3}, Split::Chunk(0), {Home::Layer(0)})
                           .Done();
  ExpectSurvives(catalog, {"tp=4", "tp=3", "tp=4", "tp=5", "tp=4", "tp=4,dp=3,zero=1",
                           "tp=5,dp=2,zero=1", "tp=4"});
  // 2, 2, 2, 0 rows of six and 1, 0, 0, 0 of one: 4, 4, 4, 0 and 3, 0, 0, 0 elements of each kind.
  for (const Kind kind : {Kind::kParam, Kind::kExpAvg, Kind::kExpAvgSq}) {
    EXPECT_THAT(SlicesOf(*MapOf(catalog, "tp=4"), kind),
                ElementsAre(ElementsAre(7), ElementsAre(4), ElementsAre(4), ElementsAre(0)));
  }
}

// Masters 1 + i * 2^-20, times a power of two so that bf16 copies differ from their neighbours'.
TEST(CaseC16, MastersKeepEveryBit) {
  const auto catalog =
      CatalogOf()
          .Add("w", {7, 9}, Split::Balanced(0), {Home::Layer(0)}, vps::Bf16AdamKinds())
          .Done();
  const auto value = [&](const vps::testing::Element& e) -> uint64_t {
    const float fraction = 1.0F + static_cast<float>(e.index + 1) * 0x1p-20F;
    const float master = std::ldexp(fraction, static_cast<int>(e.index % 7));
    const auto bits = std::bit_cast<uint32_t>(master);
    const bool bf16 = catalog->tensor(e.tensor).dtype == vps::DType::kBF16;
    EXPECT_NE(bits & 0xffffU, 0U) << "no bf16 number";
    return bf16 ? (bits + 0x8000U) >> 16 : bits;  // none of them is halfway
  };
  ExpectSurvives(catalog, {"dp=4,zero=1", "dp=2,zero=1", "dp=4,zero=1"}, value);
  ExpectSurvives(catalog, {"tp=2", "tp=1", "tp=2,dp=2,zero=1", "tp=1,dp=3,zero=1"}, value);
}

TEST(CaseC18, ParametersWithoutOptimizerState) {
  const std::vector<vps::KindSpec> bare = {{Kind::kParam, vps::DType::kF32}};
  const auto catalog =
      CatalogOf()
          .Add("p0", {7}, Split::None(), {Home::Layer(0)})
          .Add("p1", {5}, Split::None(), {Home::Layer(0)}, bare)
          .Add("p2", {3, 3}, Split::None(), {Home::Layer(0)}, vps::Fp32AdamKinds(), false)
          .Add("p3", {4}, Split::None(), {Home::Layer(0)}, bare, false)
          .Done();
  ExpectSurvives(catalog, {"dp=2,zero=1", "dp=3,zero=1", "dp=2,zero=1", "dp=2", "dp=3,zero=1"});
  for (const char* spec : {"dp=2,zero=1", "dp=3,zero=1"}) {
    std::map<std::string, int64_t> moments;
    const auto map = MapOf(catalog, spec);
    for (const RankId rank : map->Ranks()) {
      for (const vps::Shard& shard : map->ShardsOf(rank)) {
        if (catalog->tensor(shard.tensor).kind == Kind::kExpAvgSq)
          moments[catalog->parameter_of(shard.tensor).name] += shard.box.elems();
      }
    }
    EXPECT_EQ(moments, (std::map<std::string, int64_t>{{"p0", 7}, {"p2", 9}})) << spec;
  }
}

}  // namespace
}  // namespace dynatrain::engine
