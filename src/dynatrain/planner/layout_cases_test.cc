// Faults of the field that are about layouts, by routes: C06 to C12 and C14, each with the numbers
// of its text, and blockwise gate and up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "dynatrain/planner/brute_force.h"
#include "dynatrain/planner/plan.h"
#include "dynatrain/planner/testing_routes.h"
#include "dynatrain/vps/element_oracle.h"

namespace dynatrain::planner {
namespace {

using ::testing::AllOf;
using testing::AllRoutes;
using testing::Apply;
using ::testing::HasSubstr;
using testing::MapOf;
using testing::Received;
using testing::Routes;
using vps::Box;
using vps::Home;
using vps::LayoutShardMap;
using vps::Parameter;
using vps::Shape;
using vps::Split;
using vps::StateCatalog;
using vps::testing::CatalogWith;
using vps::testing::Element;
using vps::testing::MakeState;
using vps::testing::Matrix;
using vps::testing::State;

// arange over each tensor, moments far from parameters.
uint64_t Arange(const Element& element) {
  return static_cast<uint64_t>(element.tensor) * 100000 + static_cast<uint64_t>(element.index);
}

std::vector<uint32_t> BufferOf(const State& state, RankId rank, size_t buffer) {
  const std::vector<std::byte>& bytes = state.at(rank).at(buffer);
  std::vector<uint32_t> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<uint32_t> Range(uint32_t begin, uint32_t end) {
  std::vector<uint32_t> values;
  for (uint32_t v = begin; v < end; ++v) values.push_back(v);
  return values;
}

// Moves state along a chain of layouts by the routes of all ranks; returns the last state.
class Chain {
 public:
  Chain(std::shared_ptr<const StateCatalog> catalog, std::string_view spec)
      : catalog_(std::move(catalog)),
        map_(MapOf(catalog_, spec)),
        state_(MakeState(*map_, Arange)) {}

  Chain& To(std::string_view spec) {
    SCOPED_TRACE(fmt::format("{} to {}", map_->layout().ToString(), spec));
    const auto next = MapOf(catalog_, spec);
    routes_ = AllRoutes(*map_, *next, {});
    testing::ExpectSendsMatchReceives(routes_);
    for (const auto& [rank, route] : routes_) testing::ExpectOrdered(route);  // nothing empty
    EXPECT_EQ(Received(routes_), BruteForceMovedBytes(*map_, *next));
    state_ = Apply(*map_, state_, *next, routes_);
    EXPECT_EQ(state_, MakeState(*next, Arange));
    map_ = next;
    return *this;
  }
  const State& state() const { return state_; }
  const Routes& routes() const { return routes_; }
  const LayoutShardMap& map() const { return *map_; }

 private:
  std::shared_ptr<const StateCatalog> catalog_;
  std::shared_ptr<const LayoutShardMap> map_;
  State state_;
  Routes routes_;
};

// w13 has 16 rows, gate 0..7 and up 8..15 of 3 columns.
TEST(CaseC06, GateAndUpComeBackInOrderFromFsdpInsideTp) {
  const auto catalog = CatalogWith({Matrix("w13", {2, 8, 3}, Split::Balanced(1))});
  const std::string fsdp = ",zero=3,zero_order=forward-dim0";
  Chain chain(catalog, "tp=2,dp=2" + fsdp);
  // tp position 1 has gate rows 4..7, then up rows 4..7, and its second FSDP shard the latter.
  EXPECT_EQ(BufferOf(chain.state(), 3, 0), Range((8 + 4) * 3, 16 * 3));
  chain.To("tp=1,dp=4" + fsdp);
  for (RankId rank = 0; rank < 4; ++rank) {
    const auto begin = static_cast<uint32_t>(rank * 12);
    EXPECT_EQ(BufferOf(chain.state(), rank, 0), Range(begin, begin + 12));
  }
  chain.To("tp=1,dp=1");
  EXPECT_EQ(BufferOf(chain.state(), 0, 0), Range(0, 48));
  // Borders inside gate and inside up: 8 local rows over three shards are 3, 3, 2.
  Chain inside(catalog, "tp=2,dp=3" + fsdp);
  const std::vector<uint32_t> second = BufferOf(inside.state(), 2, 0);  // tp 0, shard 1
  EXPECT_EQ(second[0], 3U * 3);                                         // gate row 3
  EXPECT_EQ(second[3], (8U + 0) * 3);                                   // up row 0
  inside.To("tp=1,dp=4" + fsdp).To("tp=1,dp=1");
  EXPECT_EQ(BufferOf(inside.state(), 0, 0), Range(0, 48));
}

// 20 columns in blocks of 4: local memory has block after block, each gate then up.
TEST(BlockwiseGateAndUp, SplitsByBlockAndChangesIntoHalves) {
  const auto catalog = CatalogWith({Matrix("w13", {5, 2, 4, 3}, Split::Balanced(0))});
  Chain chain(catalog, "tp=2,dp=2,zero=1");
  chain.To("tp=3,dp=1").To("tp=1,dp=5,zero=3,zero_order=forward-dim0").To("tp=5");
  EXPECT_EQ(BufferOf(chain.state(), 2, 0), Range(48, 72));  // block 2: gate 4 x 3, up 4 x 3
  // A host that keeps [gate; up] instead: two regions with the same elements.
  const auto one = CatalogWith({{.name = "w13",
                                 .shape = {5, 2, 4, 3},
                                 .split = Split::Balanced(0),
                                 .homes = {Home::Layer(0)},
                                 .kinds = {{vps::Kind::kParam, vps::DType::kF32}}}});
  vps::ExplicitShardMap::Holding halves{0, {{"w13", vps::Kind::kParam, vps::DType::kF32, 120}}, {}};
  for (int64_t half = 0; half < 2; ++half) {
    halves.shards.push_back(
        {0, Box({0, half, 0, 0}, {5, half + 1, 4, 3}), 0, half * 60, {12, 12, 3, 1}});
  }
  const auto plain = *vps::ExplicitShardMap::Make(one, {halves});
  const auto two = MapOf(one, "tp=2");
  const State state = Apply(*two, MakeState(*two, Arange), *plain, AllRoutes(*two, *plain, {}));
  std::vector<uint32_t> wanted;
  for (uint32_t half = 0; half < 2; ++half) {
    for (uint32_t block = 0; block < 5; ++block) {
      for (uint32_t i = 0; i < 12; ++i) wanted.push_back((block * 2 + half) * 12 + i);
    }
  }
  EXPECT_EQ(BufferOf(state, 0, 0), wanted);
  EXPECT_EQ(Apply(*plain, state, *two, AllRoutes(*plain, *two, {})), MakeState(*two, Arange));
}

std::string PlanError(std::shared_ptr<const StateCatalog> catalog, std::string_view from,
                      std::string_view to) {
  PlanRequest request;
  request.catalog = std::move(catalog);
  request.from = *vps::ParseLayout(from);
  request.to = *vps::ParseLayout(to);
  const auto plan = MakePlan(request);
  EXPECT_FALSE(plan.ok());
  return plan.ok() ? "" : plan.status().message();
}

TEST(CaseC07, SizesThatDivideOnlyPhysicallyAreRefusedOrExact) {
  // F=3 declared as a block: refused at planning, although the 6 rows of gate and up divide by 2.
  EXPECT_THAT(PlanError(CatalogWith({Matrix("mlp.gate_up", {2, 3, 4}, Split::Balanced(1, 3))}),
                        "tp=1", "tp=2"),
              AllOf(HasSubstr("tensor mlp.gate_up"), HasSubstr("axis 1 of 3 in blocks of 3"),
                    HasSubstr("tp=2")));
  // Not declared: 2 and 1 columns of each half, exactly.
  Chain uneven(CatalogWith({Matrix("mlp.gate_up", {2, 3, 4}, Split::Balanced(1))}), "tp=1");
  uneven.To("tp=2");
  EXPECT_EQ(BufferOf(uneven.state(), 1, 0), [] {
    std::vector<uint32_t> rows = Range(8, 12);  // gate column 2, then up column 2
    for (const uint32_t v : Range(20, 24)) rows.push_back(v);
    return rows;
  }());
  uneven.To("tp=3").To("tp=1");
  // 4 heads of q, k, v (2 rows each) and one gate row per head, all gate rows at the tail of what a
  // rank stores: declared so, TP2 to TP4 keeps each gate row with its head.
  Parameter tail = Matrix("attn.qkv_gate", {4, 7, 3}, Split::Balanced(0));
  tail.stored = vps::StoredParts{1, {6, 1}};
  Chain heads(CatalogWith({tail}), "tp=2");
  EXPECT_EQ(BufferOf(heads.state(), 1, 0)[2 * 6 * 3], (2U * 7 + 6) * 3);  // gate row of head 2
  heads.To("tp=4");
  const std::vector<uint32_t> last = BufferOf(heads.state(), 3, 0);
  EXPECT_EQ(last, Range(3 * 21, 4 * 21));
  heads.To("tp=1");
  // As rows without meaning, in blocks of a head's 7: TP2 fits, TP3 cuts across and is refused.
  EXPECT_THAT(
      PlanError(CatalogWith({Matrix("attn.rows", {28, 3}, Split::Balanced(0, 7))}), "tp=2", "tp=3"),
      AllOf(HasSubstr("tensor attn.rows"), HasSubstr("blocks of 7"), HasSubstr("tp=3")));
}

TEST(CaseC08, UnevenFsdpInsideTpEqualsArange) {
  const std::string fsdp = ",zero=3,zero_order=forward-dim0";
  for (const int64_t n : {5, 6, 9}) {
    const auto catalog = CatalogWith({Matrix("w", {n, 1}, Split::Balanced(0))});
    for (const std::string& to : {"tp=1,dp=4" + fsdp, std::string("tp=4"), std::string("dp=1")}) {
      Chain chain(catalog, "tp=2,dp=2" + fsdp);
      int64_t held = 0;
      for (RankId rank = 0; rank < 4; ++rank) {
        for (const vps::Shard& shard : chain.map().ShardsOf(rank)) {
          held += shard.tensor == 0 ? shard.box.elems() : 0;
        }
      }
      EXPECT_EQ(held, n);
      chain.To(to).To("dp=1");
      EXPECT_EQ(BufferOf(chain.state(), 0, 0), Range(0, static_cast<uint32_t>(n)));
    }
  }
  // 5 rows: tp0 = [0, 1 | 2], tp1 = [3 | 4]; a mesh of dp outside and tp inside.
  const auto map =
      MapOf(CatalogWith({Matrix("w", {5, 1}, Split::Balanced(0))}), "tp=2,dp=2" + fsdp);
  const std::vector<Box> wanted = {Box({0, 0}, {2, 1}), Box({3, 0}, {4, 1}), Box({2, 0}, {3, 1}),
                                   Box({4, 0}, {5, 1})};
  for (RankId rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(map->ShardsOf(rank)[0].box, wanted[static_cast<size_t>(rank)]);
  }
}

// ceil parts of 6 over 4 are 2, 2, 2, 0; of 1 they are 1, 0, 0, 0.
TEST(CaseC09, EmptyShardsAreHeldByNobodyAndAskedOfNobody) {
  const auto catalog =
      CatalogWith({Matrix("six", {6, 1}, Split::Chunk(0)), Matrix("one", {1, 1}, Split::Chunk(0))});
  const auto four = MapOf(catalog, "tp=4");
  const std::vector<RankId> owners = {0, 0, 1, 1, 2, 2};
  for (vps::TensorId tensor = 0; tensor < 3; ++tensor) {
    for (int64_t row = 0; row < 6; ++row) {
      four->VisitHolders(tensor, Box({row, 0}, {row + 1, 1}),
                         [&](const Box&, const vps::HolderSet& holders) {
                           ASSERT_EQ(holders.size(), 1);
                           EXPECT_EQ(holders.At(0), owners[static_cast<size_t>(row)]);
                         });
    }
  }
  EXPECT_TRUE(four->ShardsOf(3).empty());
  EXPECT_EQ(four->BuffersOf(3).size(), 3U) << "buffers without elements, for every kind";
  Chain chain(catalog, "tp=4");
  chain.To("tp=3").To("tp=4");
  EXPECT_TRUE(chain.routes().at(3).receives.empty());
  chain.To("tp=5").To("tp=4").To("tp=3").To("tp=5").To("tp=3").To("tp=4,dp=3,zero=1").To("tp=4");
}

std::shared_ptr<const StateCatalog> Layers(int32_t count) {
  std::vector<Parameter> layers;
  for (int32_t i = 0; i < count; ++i) {
    layers.push_back(
        Matrix(fmt::format("layers.{}", i), {2, 3}, Split::Balanced(0), Home::Layer(i)));
  }
  return CatalogWith(layers);
}

// The layers that a rank has, ascending.
std::vector<int32_t> LayersOf(const LayoutShardMap& map, RankId rank) {
  std::vector<int32_t> layers;
  for (const vps::Shard& shard : map.ShardsOf(rank)) {
    const int32_t layer = map.catalog().parameter_of(shard.tensor).homes[0].layer;
    if (layers.empty() || layers.back() != layer) layers.push_back(layer);
  }
  return layers;
}

TEST(CaseC10, NoLayerIsLostBetweenStages) {
  const auto stages = [](int32_t layers, std::string_view spec) {
    const auto map = MapOf(Layers(layers), spec);
    std::vector<int32_t> sizes;
    int32_t next = 0;
    for (const RankId rank : map->Ranks()) {
      const std::vector<int32_t> own = LayersOf(*map, rank);
      for (const int32_t layer : own) EXPECT_EQ(layer, next++);
      sizes.push_back(static_cast<int32_t>(own.size()));
    }
    EXPECT_EQ(next, layers);
    return sizes;
  };
  EXPECT_EQ(stages(7, "pp=2"), (std::vector<int32_t>{4, 3}));
  EXPECT_EQ(stages(10, "pp=3"), (std::vector<int32_t>{4, 3, 3}));
  EXPECT_EQ(stages(30, "pp=4"), (std::vector<int32_t>{8, 8, 7, 7}));
  Chain(Layers(7), "pp=1").To("pp=2").To("pp=3").To("pp=1");
  Chain(Layers(10), "pp=3").To("pp=1").To("pp=3,split=3+3+4");
  Chain(Layers(30), "pp=4").To("pp=3").To("pp=4,split=7+8+8+7");
  EXPECT_THAT(PlanError(Layers(30), "pp=1", "pp=4,split=7+7+7+7"),
              HasSubstr("layers 28 to 29 would be on no stage"));
}

TEST(CaseC11, VirtualStagesHaveTheLayersOfTheirChunks) {
  const std::string interleaved = "pp=2,vpp=2,split=2+2+2+1";
  Chain chain(Layers(7), interleaved);
  EXPECT_EQ(LayersOf(chain.map(), 0), (std::vector<int32_t>{0, 1, 4, 5}));
  EXPECT_EQ(LayersOf(chain.map(), 1), (std::vector<int32_t>{2, 3, 6}));
  chain.To("pp=2");
  EXPECT_EQ(LayersOf(chain.map(), 0), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(LayersOf(chain.map(), 1), (std::vector<int32_t>{4, 5, 6}));
  // Layers 2 and 3 go one way, 4 and 5 the other: 4 layers of 6 elements in three kinds of fp32.
  EXPECT_EQ(Received(chain.routes()), 4 * 6 * 3 * 4);
  for (const auto& [rank, route] : chain.routes()) {
    for (const Transfer& t : route.receives) {
      const int32_t layer = chain.map().catalog().parameter_of(t.piece.tensor).homes[0].layer;
      EXPECT_TRUE(rank == 0 ? layer == 2 || layer == 3 : layer == 4 || layer == 5);
    }
  }
  chain.To("pp=1").To(interleaved).To("pp=1");
  for (vps::TensorId tensor = 0; tensor < 21; ++tensor) {
    EXPECT_EQ(chain.map().catalog().parameter_of(tensor).name,
              fmt::format("layers.{}", tensor / 3));
  }
}

// A tied embedding is one tensor with two homes: at PP1 one copy, else one on the first and one on
// the last stage, for the moments as for the parameter.
TEST(CaseC12, TiedCopiesComeAndGoWithTheStages) {
  Parameter embedding = Matrix("embedding", {6, 2}, Split::Balanced(0), Home::Embedding());
  embedding.homes.push_back(Home::Head());
  const auto catalog =
      CatalogWith({embedding, Matrix("layers.0", {5, 3}, Split::Balanced(0), Home::Layer(0)),
                   Matrix("layers.1", {4, 3}, Split::Balanced(0), Home::Layer(1))});
  const auto holders = [](const LayoutShardMap& map) {
    std::vector<RankId> ranks;
    map.VisitHolders(1, Box({0, 0}, {6, 2}), [&](const Box&, const vps::HolderSet& set) {
      for (int64_t i = 0; i < set.size(); ++i) ranks.push_back(set.At(i));
    });
    return ranks;
  };
  Chain chain(catalog, "pp=1");
  chain.To("pp=2");
  EXPECT_EQ(holders(chain.map()), (std::vector<RankId>{0, 1}));
  EXPECT_EQ(Received(chain.routes()), (12 + 12) * 3 * 4) << "the copy and layer 1, in three kinds";
  chain.To("pp=4,split=1+1+0+0");
  EXPECT_EQ(holders(chain.map()), (std::vector<RankId>{0, 3}));
  chain.To("pp=1");
  EXPECT_EQ(holders(chain.map()), (std::vector<RankId>{0}));
  EXPECT_EQ(Received(chain.routes()), 12 * 3 * 4) << "layer 1 alone";
  Chain(catalog, "pp=2,dp=3,zero=1").To("tp=2,pp=1,dp=2,zero=1").To("pp=4,split=1+1+0+0,zero=1");
}

TEST(CaseC14, NothingEmptyIsPlanned) {
  const auto catalog = CatalogWith({Matrix("empty", {0, 8}, Split::Balanced(0)),
                                    Matrix("kv", {2, 3, 4}, Split::Balanced(0)),
                                    Matrix("shared_kv", {2, 4, 3}, Split::Groups(0, 2))});
  Chain chain(catalog, "tp=2");
  chain.To("tp=4");  // two of four ranks get no head of "kv", all of them some of "shared_kv"
  EXPECT_EQ(chain.map().ShardsOf(3).front().tensor, 6);
  chain.To("tp=1,dp=3,zero=1").To("tp=4,dp=2,zero=1").To("tp=2");
  // Rank 0 keeps everything and sends nothing; rank 1 and its state are idle in both layouts.
  Chain idle(catalog, "dp=2,ranks=0+2");
  idle.To("dp=1,ranks=0");
  const Route& kept = idle.routes().at(0);
  EXPECT_TRUE(kept.sends.empty() && kept.receives.empty() && !kept.keeps.empty());
  const Route& left = idle.routes().at(2);
  EXPECT_TRUE(left.sends.empty() && left.receives.empty() && left.keeps.empty());
}

}  // namespace
}  // namespace dynatrain::planner
