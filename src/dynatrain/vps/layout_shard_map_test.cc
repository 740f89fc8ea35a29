#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "dynatrain/vps/element_oracle.h"
#include "dynatrain/vps/random_layouts.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {
namespace {

using testing::Element;
using testing::ElementOracle;
using testing::ElementsOf;

// The ranks of a set in its own order; checks that At and IndexOf are inverse.
std::vector<RankId> RanksOf(const HolderSet& set) {
  std::vector<RankId> ranks;
  for (int64_t i = 0; i < set.size(); ++i) {
    ranks.push_back(set.At(i));
    EXPECT_EQ(set.IndexOf(ranks.back()), i);
  }
  return ranks;
}

struct Visit {
  Box part;
  std::vector<RankId> ranks;
};

std::vector<Visit> VisitsOf(const ShardMap& map, TensorId tensor, const Box& box) {
  std::vector<Visit> visits;
  map.VisitHolders(tensor, box, [&](const Box& part, const HolderSet& set) {
    visits.push_back({part, RanksOf(set)});
  });
  return visits;
}

// VisitHolders covers `box` once, names exactly the holders, and cuts it as it cuts the whole
// tensor.
void ExpectHoldersMatch(const ShardMap& map, const ElementOracle& oracle, TensorId tensor,
                        const Box& box) {
  const std::vector<Visit> whole =
      VisitsOf(map, tensor, Box::Whole(map.catalog().shape_of(tensor)));
  std::vector<Element> covered;
  for (const Visit& visit : VisitsOf(map, tensor, box)) {
    EXPECT_FALSE(visit.part.empty());
    EXPECT_TRUE(box.Contains(visit.part));
    EXPECT_TRUE(std::any_of(whole.begin(), whole.end(),
                            [&](const Visit& w) {
                              return Intersect(w.part, box) == visit.part && w.ranks == visit.ranks;
                            }))
        << "part " << visit.part.ToString() << " of " << box.ToString();
    std::vector<RankId> ranks = visit.ranks;
    std::sort(ranks.begin(), ranks.end());
    for (const Element& element : ElementsOf(map.catalog(), tensor, visit.part)) {
      EXPECT_EQ(ranks, oracle.HoldersOf(element));
      covered.push_back(element);
    }
    for (const RankId rank : ranks) {
      const std::vector<Shard> shards = map.ShardsOf(rank);
      EXPECT_EQ(std::count_if(shards.begin(), shards.end(),
                              [&](const Shard& s) {
                                return s.tensor == tensor && s.box.Contains(visit.part);
                              }),
                1)
          << "part " << visit.part.ToString() << " lies in no single shard of rank " << rank;
    }
  }
  std::sort(covered.begin(), covered.end());
  EXPECT_EQ(covered, ElementsOf(map.catalog(), tensor, box));
}

void ExpectMapMatchesOracle(const ShardMap& map, const ElementOracle& oracle, Random* random) {
  for (const RankId rank : map.Ranks()) {
    EXPECT_EQ(testing::PaintedBuffers(map, rank), oracle.BuffersOf(rank)) << "rank " << rank;
    const std::vector<Shard> shards = map.ShardsOf(rank);
    EXPECT_TRUE(std::is_sorted(shards.begin(), shards.end(), [](const Shard& a, const Shard& b) {
      return std::tie(a.tensor, a.box) < std::tie(b.tensor, b.box);
    }));
  }
  for (const StateTensor& tensor : map.catalog().tensors()) {
    const Shape& shape = map.catalog().shape_of(tensor.id);
    ExpectHoldersMatch(map, oracle, tensor.id, Box::Whole(shape));
    ExpectHoldersMatch(map, oracle, tensor.id, testing::RandomBox(random, shape));
  }
}

TEST(LayoutShardMapProperty, MatchesTheElementOracle) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    const auto tp = static_cast<int32_t>(random.Between(0, 4));
    const std::shared_ptr<const StateCatalog> catalog = testing::RandomCatalog(&random, tp);
    const Layout layout = testing::RandomLayout(&random, *catalog, tp);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, layout.ToString()));
    const auto map = LayoutShardMap::Make(catalog, layout);
    ASSERT_TRUE(map.ok()) << map.status().ToString();
    const ElementOracle oracle(*catalog, layout);
    ExpectMapMatchesOracle(**map, oracle, &random);
    const auto copy = ExplicitShardMap::Copy(catalog, **map, {});
    ASSERT_TRUE(copy.ok()) << copy.status().ToString();
    ExpectMapMatchesOracle(**copy, oracle, &random);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LayoutShardMapProperty, MatchesTheElementOracleOverAllAxes) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Random random(seed);
    const std::shared_ptr<const StateCatalog> catalog = testing::RandomWideCatalog(&random);
    const Layout layout = testing::RandomWideLayout(&random, *catalog);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, layout.ToString()));
    const auto map = LayoutShardMap::Make(catalog, layout);
    ASSERT_TRUE(map.ok()) << map.status().ToString();
    const ElementOracle oracle(*catalog, layout);
    ExpectMapMatchesOracle(**map, oracle, &random);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LayoutShardMapProperty, BucketsDescribeTheBuffers) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    const std::shared_ptr<const StateCatalog> catalog = testing::RandomWideCatalog(&random);
    const Layout layout = testing::RandomWideLayout(&random, *catalog);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, layout.ToString()));
    const auto map = *LayoutShardMap::Make(catalog, layout);
    for (const RankId rank : map->Ranks()) {
      const std::vector<Buffer> buffers = map->BuffersOf(rank);
      const std::vector<Bucket> buckets = map->BucketsOfRank(rank);
      size_t seen = 0;
      for (size_t b = 0; b < buckets.size(); ++b) {
        for (const Kind kind :
             {Kind::kParam, Kind::kGrad, Kind::kMaster, Kind::kExpAvg, Kind::kExpAvgSq}) {
          const std::optional<BufferIndex> index =
              map->BufferOf(rank, kind, static_cast<int32_t>(b));
          const bool expected = std::any_of(
              buckets[b].entries.begin(), buckets[b].entries.end(),
              [&](const BucketEntry& e) { return catalog->Find(e.parameter, kind).has_value(); });
          ASSERT_EQ(index.has_value(), expected);
          if (!index) continue;
          ++seen;
          const Buffer& buffer = buffers.at(static_cast<size_t>(*index));
          EXPECT_EQ(buffer.kind, kind);
          EXPECT_EQ(
              buffer.elems,
              map->CutOverDp(kind)
                  ? buckets[b].elems / (buckets[b].experts ? layout.edp() : layout.dp * layout.cp)
                  : buckets[b].elems);
          EXPECT_THAT(buffer.name,
                      ::testing::StartsWith(fmt::format("{}/{}", KindName(kind), buckets[b].name)));
        }
        EXPECT_GE(buckets[b].elems, buckets[b].real_elems);
        for (const BucketEntry& entry : buckets[b].entries) {
          EXPECT_EQ(catalog->parameters()[static_cast<size_t>(entry.parameter)].trainable,
                    buckets[b].trainable);
          EXPECT_LE(entry.offset + entry.box.elems(), buckets[b].real_elems);
        }
      }
      EXPECT_EQ(seen, buffers.size());
    }
    EXPECT_EQ(map->BufferOf(1000, Kind::kParam, 0), std::nullopt);
    if (::testing::Test::HasFailure()) return;
  }
}

std::shared_ptr<const StateCatalog> TiedModel() {
  auto catalog = std::make_shared<StateCatalog>();
  EXPECT_TRUE(catalog
                  ->Add({.name = "embedding",
                         .shape = {6, 2},
                         .split = Split::Balanced(0),
                         .homes = {Home::Embedding(), Home::Head()},
                         .kinds = Fp32AdamKinds()})
                  .ok());
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(catalog
                    ->Add({.name = fmt::format("layers.{}.w", layer),
                           .shape = {4, 3},
                           .split = Split::Balanced(0),
                           .homes = {Home::Layer(layer)},
                           .kinds = Fp32AdamKinds()})
                    .ok());
    EXPECT_TRUE(catalog
                    ->Add({.name = fmt::format("layers.{}.norm", layer),
                           .shape = {3},
                           .split = Split::None(),
                           .homes = {Home::Layer(layer)},
                           .kinds = Fp32AdamKinds()})
                    .ok());
  }
  return catalog;
}

std::shared_ptr<const LayoutShardMap> Make(const std::shared_ptr<const StateCatalog>& catalog,
                                           std::string_view spec) {
  return *LayoutShardMap::Make(catalog, *ParseLayout(spec));
}

std::vector<std::string> NamesOf(const std::vector<Bucket>& buckets) {
  std::vector<std::string> names;
  for (const Bucket& bucket : buckets) names.push_back(bucket.name);
  return names;
}

TEST(LayoutShardMap, NamesBucketsByTheirContent) {
  const auto catalog = TiedModel();
  using ::testing::ElementsAre;
  EXPECT_THAT(NamesOf(Make(catalog, "pp=2")->BucketsOf(0, 0)),
              ElementsAre("embedding", "layers.0", "layers.1"));
  EXPECT_THAT(NamesOf(Make(catalog, "pp=2")->BucketsOf(1, 0)), ElementsAre("layers.2", "head"));
  EXPECT_THAT(NamesOf(Make(catalog, "pp=1")->BucketsOf(0, 0)),
              ElementsAre("embedding", "layers.0", "layers.1", "layers.2"));
  EXPECT_THAT(NamesOf(Make(catalog, "pp=2,zero_order=reverse-bucketed")->BucketsOf(1, 0)),
              ElementsAre("head", "layers.2"));
  EXPECT_THAT(NamesOf(Make(catalog, "pp=2,zero_order=forward-contiguous")->BucketsOf(1, 0)),
              ElementsAre("stage"));
  EXPECT_THAT(NamesOf(Make(catalog, "pp=2,zero_order=reverse-bucketed:13")->BucketsOf(1, 0)),
              ElementsAre("bucket.0", "bucket.1"));
  EXPECT_EQ(Make(catalog, "dp=2,zero=1")->BuffersOf(1)[1].name, "exp_avg/embedding[1/2]");
  EXPECT_EQ(Make(catalog, "dp=2,zero=1")->BuffersOf(1)[0].name, "param/embedding");
}

TEST(LayoutShardMap, NamesFrozenAndOtherDTypesApart) {
  auto catalog = std::make_shared<StateCatalog>();
  const auto add = [&](std::string name, std::vector<KindSpec> kinds, bool trainable) {
    EXPECT_TRUE(catalog
                    ->Add({.name = std::move(name),
                           .shape = {3},
                           .split = Split::None(),
                           .homes = {Home::Layer(0)},
                           .kinds = std::move(kinds),
                           .trainable = trainable})
                    .ok());
  };
  add("w", Bf16AdamKinds(), true);
  add("frozen", {{Kind::kParam, DType::kBF16}}, false);
  add("router", Fp32AdamKinds(), true);
  EXPECT_THAT(NamesOf(Make(catalog, "dp=2,zero=1")->BucketsOf(0, 0)),
              ::testing::ElementsAre("layers.0", "layers.0.fp32", "layers.0.frozen"));
}

// The cost of a question does not grow with the world: one strided product, whatever dp is.
TEST(LayoutShardMap, HoldersAreProductsNeverLists) {
  const auto catalog = TiedModel();
  const auto map = Make(catalog, "tp=2,pp=3,dp=4096");
  map->VisitHolders(*catalog->Find(0, Kind::kParam), Box::Whole({6, 2}),
                    [&](const Box&, const HolderSet& set) {
                      ASSERT_EQ(set.products().size(), 1u);
                      EXPECT_EQ(set.products()[0].ranges,
                                (std::vector<HolderSet::Range>{{2 * 2 * 4096, 2}, {2, 4096}}));
                      EXPECT_EQ(set.size(), 2 * 4096);
                    });
  map->VisitHolders(
      *catalog->Find(2, Kind::kParam), Box::Whole({3}), [&](const Box&, const HolderSet& set) {
        ASSERT_EQ(set.products().size(), 1u);
        EXPECT_EQ(set.products()[0].ranges, (std::vector<HolderSet::Range>{{1, 2 * 4096}}));
      });
}

TEST(LayoutShardMap, RefusesWhatDoesNotFitByName) {
  const auto catalog = TiedModel();
  const auto error = [&](const Layout& layout) {
    return LayoutShardMap::Make(catalog, layout).status().message();
  };
  EXPECT_EQ(error({.pp = 2, .split = {1, 1}}),
            "split=1+1 places 2 layers, the model has 3: layer 2 would be on no stage");
  auto blocked = std::make_shared<StateCatalog>();
  ASSERT_TRUE(blocked
                  ->Add({.name = "qkv",
                         .shape = {6, 4},
                         .split = Split::Balanced(0, 2),
                         .homes = {Home::Layer(0)},
                         .kinds = Fp32AdamKinds()})
                  .ok());
  EXPECT_TRUE(LayoutShardMap::Make(blocked, {.tp = 3}).ok());
  EXPECT_EQ(LayoutShardMap::Make(blocked, {.tp = 2}).status().message(),
            "tensor qkv: axis 0 of 6 in blocks of 2 does not split over tp=2 (rule balanced): the "
            "cut at 3 falls inside a block");
  auto listed = std::make_shared<StateCatalog>();
  ASSERT_TRUE(listed
                  ->Add({.name = "w",
                         .shape = {6},
                         .split = Split::Explicit(0, {5, 1}),
                         .homes = {Home::Layer(0)},
                         .kinds = Fp32AdamKinds()})
                  .ok());
  EXPECT_TRUE(LayoutShardMap::Make(listed, {.tp = 2}).ok());
  EXPECT_EQ(LayoutShardMap::Make(listed, {.tp = 3}).status().message(),
            "tensor w: axis 0 is declared in 2 parts, tp=3 needs 3");
  auto mixed = std::make_shared<StateCatalog>();
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    ASSERT_TRUE(mixed
                    ->Add({.name = fmt::format("w.{}", DTypeName(moments)),
                           .shape = {6},
                           .split = Split::None(),
                           .homes = {Home::Layer(0)},
                           .kinds = {{Kind::kParam, DType::kF32}, {Kind::kExpAvg, moments}}})
                    .ok());
  }
  EXPECT_EQ(LayoutShardMap::Make(mixed, {}).status().message(),
            "tensor w.bf16/exp_avg is bf16 and w.fp32/exp_avg is fp32: one flat buffer holds both, "
            "so they need the "
            "same dtype");
}

TEST(LayoutShardMap, FingerprintTellsLayoutsAndCatalogsApart) {
  const auto catalog = TiedModel();
  EXPECT_EQ(Make(catalog, "tp=2")->Fingerprint(), Make(TiedModel(), "tp=2")->Fingerprint());
  EXPECT_NE(Make(catalog, "tp=2")->Fingerprint(), Make(catalog, "pp=2")->Fingerprint());
}

}  // namespace
}  // namespace dynatrain::vps
