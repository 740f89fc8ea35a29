#include "dynatrain/vps/digest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "dynatrain/vps/element_oracle.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::vps {
namespace {

using testing::DistinctValue;
using testing::Element;
using testing::MakeState;
using testing::State;

constexpr uint64_t kKey = 77;

StateDigest DigestOf(const ShardMap& map, const State& state, uint64_t key = kKey) {
  StateDigest total;
  for (const RankId rank : map.Ranks()) {
    const BufferReader buffers = [&](BufferIndex buffer) {
      return ConstByteSpan(state.at(rank).at(static_cast<size_t>(buffer)));
    };
    total = Combine(total, DigestOfRank(map, rank, buffers, key));
  }
  return total;
}

uint64_t DigestOfWhole(const StateCatalog& catalog, const testing::ValueFunction& value) {
  uint64_t digest = 0;
  for (const StateTensor& tensor : catalog.tensors()) {
    const auto width = static_cast<size_t>(ElemBytes(tensor.dtype));
    std::vector<std::byte> dense(static_cast<size_t>(ElemCount(catalog.shape_of(tensor.id))) *
                                 width);
    for (size_t i = 0; i < dense.size() / width; ++i) {
      const uint64_t bits = value({tensor.id, static_cast<int64_t>(i)});
      std::memcpy(dense.data() + i * width, &bits, width);
    }
    digest += DigestOfTensor(catalog, tensor.id, dense);
  }
  return digest;
}

TEST(DigestProperty, IsTheSameInEveryLayout) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const auto catalog = testing::RandomWideCatalog(&random);
    const uint64_t expected = DigestOfWhole(*catalog, DistinctValue);
    for (int i = 0; i < 3; ++i) {
      const Layout layout = testing::RandomWideLayout(&random, *catalog);
      SCOPED_TRACE(fmt::format("seed {}: {}", seed, layout.ToString()));
      const auto map = *LayoutShardMap::Make(catalog, layout);
      EXPECT_EQ(DigestOf(*map, MakeState(*map, DistinctValue)), (StateDigest{expected, 0}));
    }
  }
}

// One flipped bit anywhere changes the digest (first holder) or the replica sum (any holder), and
// padding changes nothing.
TEST(DigestProperty, SeesEveryByteOfStateAndNoPadding) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const auto catalog = testing::RandomWideCatalog(&random);
    const Layout layout = testing::RandomWideLayout(&random, *catalog);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, layout.ToString()));
    const auto map = *LayoutShardMap::Make(catalog, layout);
    State state = MakeState(*map, DistinctValue);
    const StateDigest before = DigestOf(*map, state);
    for (const RankId rank : map->Ranks()) {
      const std::vector<testing::OracleBuffer> painted = testing::PaintedBuffers(*map, rank);
      const std::vector<Buffer> buffers = map->BuffersOf(rank);
      for (size_t b = 0; b < buffers.size(); ++b) {
        if (buffers[b].elems == 0) continue;
        const int64_t at = random.Between(0, buffers[b].elems - 1);
        std::byte& flipped =
            state.at(rank)[b][static_cast<size_t>(at * ElemBytes(buffers[b].dtype))];
        const std::byte bit = std::byte{1} << static_cast<int>(random.Between(0, 7));
        flipped ^= bit;
        const StateDigest after = DigestOf(*map, state);
        if (painted[b].elements[static_cast<size_t>(at)].tensor < 0) {
          EXPECT_EQ(after, before);
        } else {
          EXPECT_NE(after, before);
        }
        flipped ^= bit;
      }
    }
  }
}

std::shared_ptr<const StateCatalog> TwoLayers() {
  auto catalog = std::make_shared<StateCatalog>();
  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_TRUE(catalog
                    ->Add({.name = fmt::format("layers.{}.w", layer),
                           .shape = {4, 3},
                           .split = Split::Balanced(0),
                           .homes = {Home::Layer(layer)},
                           .kinds = {{Kind::kParam, DType::kF32}}})
                    .ok());
  }
  return catalog;
}

TEST(Digest, SeesSwappedLayers) {
  const auto catalog = TwoLayers();
  const auto map = *LayoutShardMap::Make(catalog, *ParseLayout("tp=2,pp=2,dp=2"));
  const auto swapped = [](const Element& e) { return DistinctValue({1 - e.tensor, e.index}); };
  EXPECT_NE(DigestOf(*map, MakeState(*map, swapped)).digest,
            DigestOf(*map, MakeState(*map, DistinctValue)).digest);
}

TEST(Digest, SeesAStaleReplica) {
  const auto map = *LayoutShardMap::Make(TwoLayers(), *ParseLayout("tp=2,dp=3"));
  State state = MakeState(*map, DistinctValue);
  const StateDigest fresh = DigestOf(*map, state);
  const auto old = [](const Element& e) { return DistinctValue(e) + 1; };
  state.at(4) = MakeState(*map, old).at(4);  // dp position 2: never the first holder
  const StateDigest stale = DigestOf(*map, state);
  EXPECT_EQ(stale.digest, fresh.digest);
  EXPECT_EQ(fresh.replica, 0u);
  EXPECT_NE(stale.replica, 0u);
  EXPECT_NE(stale.replica, DigestOf(*map, state, kKey + 1).replica);
}

TEST(Digest, CountsBitsNotValues) {
  auto catalog = std::make_shared<StateCatalog>();
  ASSERT_TRUE(catalog
                  ->Add({.name = "scalar",
                         .shape = {},
                         .split = Split::None(),
                         .homes = {Home::Layer(0)},
                         .kinds = {{Kind::kParam, DType::kF32}}})
                  .ok());
  std::set<uint64_t> digests;
  const std::vector<float> values = {0.0F, -0.0F, 1.0F, std::nanf("1"), std::nanf("2"), INFINITY};
  for (const float value : values)
    digests.insert(DigestOfTensor(*catalog, 0, std::as_bytes(std::span(&value, 1))));
  EXPECT_EQ(digests.size(), values.size());
}

TEST(Digest, DependsOnTensorKindDTypeAndIndex) {
  auto catalog = std::make_shared<StateCatalog>();
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(catalog
                    ->Add({.name = name,
                           .shape = {2},
                           .split = Split::None(),
                           .homes = {Home::Layer(0)},
                           .kinds = {{Kind::kParam, DType::kI32}, {Kind::kExpAvg, DType::kF32}}})
                    .ok());
  }
  std::set<uint64_t> digests;
  for (const std::array<uint32_t, 2>& bits :
       {std::array<uint32_t, 2>{1, 2}, std::array<uint32_t, 2>{2, 1}}) {
    for (TensorId tensor = 0; tensor < 4; ++tensor) {
      digests.insert(DigestOfTensor(*catalog, tensor, std::as_bytes(std::span(bits))));
    }
  }
  EXPECT_EQ(digests.size(), 8u);
}

// C13: what lies transposed or apart in memory has the digest of its logical order.
TEST(CaseC13, StridedViewsHaveTheLogicalDigest) {
  auto catalog = std::make_shared<StateCatalog>();
  ASSERT_TRUE(catalog
                  ->Add({.name = "w",
                         .shape = {6, 8},
                         .split = Split::None(),
                         .homes = {Home::Layer(0)},
                         .kinds = {{Kind::kParam, DType::kBF16}}})
                  .ok());
  const Buffer buffer{.name = "w", .kind = Kind::kParam, .dtype = DType::kBF16, .elems = 200};
  const auto rows =
      *ExplicitShardMap::Make(catalog, {{0, {buffer}, {{0, Box({0, 0}, {3, 8}), 0, 4, {9, 1}}}},
                                        {1, {buffer}, {{0, Box({3, 0}, {6, 8}), 0, 0, {24, 3}}}}});
  EXPECT_EQ(DigestOf(*rows, MakeState(*rows, DistinctValue)),
            (StateDigest{DigestOfWhole(*catalog, DistinctValue), 0}));
  const auto map_of = [&](const Coords& strides, int64_t offset) {
    return *ExplicitShardMap::Make(catalog,
                                   {{0, {buffer}, {{0, Box({0, 0}, {6, 3}), 0, offset, strides}}},
                                    {1, {buffer}, {{0, Box({0, 3}, {6, 8}), 0, 0, {5, 1}}}}});
  };
  const uint64_t expected = DigestOfWhole(*catalog, DistinctValue);
  for (const auto& [strides, offset] : std::vector<std::pair<Coords, int64_t>>{
           {{3, 1}, 0}, {{1, 6}, 0}, {{1, 11}, 7}, {{24, 2}, 5}, {{8, 1}, 30}}) {
    const auto map = map_of(strides, offset);
    EXPECT_EQ(DigestOf(*map, MakeState(*map, DistinctValue)), (StateDigest{expected, 0}));
  }
}

}  // namespace
}  // namespace dynatrain::vps
