// Faults of the field whose subject is tensors, stages and what is registered, through programs that
// are executed: after every hop each element is compared with what an oracle, or a list made by hand,
// tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>

#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/vps/element_oracle.h"

namespace dynatrain::engine {
namespace {

using ::testing::ElementsAre;
using testing::ExpectSurvives;
using ::testing::HasSubstr;
using testing::RunSwitch;
using testing::SwitchResult;
using vps::Box;
using vps::Home;
using vps::Kind;
using vps::LayoutShardMap;
using vps::Split;
using vps::testing::CatalogOf;
using vps::testing::DistinctValue;
using vps::testing::HeldElements;
using vps::testing::MapOf;
using vps::testing::OracleState;
using vps::testing::State;

std::vector<float> FloatsOf(const State& state, RankId rank, size_t buffer) {
  const std::vector<std::byte>& bytes = state.at(rank).at(buffer);
  std::vector<float> values(bytes.size() / 4);
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The fused weight [groups, q q k v, 2, 3] as it is stored: [q | k | v] of the groups of each
// position. 1000 * part + row of that part, the same on all columns, made by hand.
State FusedByHand(int32_t tp) {
  const std::vector<std::pair<int, int>> parts = {{0, 8}, {8, 12}, {12, 16}};  // q, k, v heads
  State state;
  for (RankId rank = 0; rank < tp; ++rank) {
    for (int kind = 0; kind < 3; ++kind) {
      std::vector<std::byte>& bytes = state[rank].emplace_back();
      for (size_t part = 0; part < 3; ++part) {
        const int heads = parts[part].second - parts[part].first;
        for (int head = rank * heads / tp; head < (rank + 1) * heads / tp; ++head) {
          for (int i = 0; i < 6; ++i) {
            const auto value = static_cast<uint32_t>(10000 * kind + 1000 * static_cast<int>(part) +
                                                     head * 6 + i + 1);
            const auto* raw = reinterpret_cast<const std::byte*>(&value);
            bytes.insert(bytes.end(), raw, raw + 4);
          }
        }
      }
    }
  }
  return state;
}

TEST(CaseC05, TwoConventionsForOneFusedWeight) {
  vps::Parameter qkv{.name = "qkv",
                     .shape = {4, 4, 2, 3},
                     .split = Split::Balanced(0),
                     .homes = {Home::Layer(0)},
                     .kinds = vps::Fp32AdamKinds()};
  qkv.stored = vps::StoredParts{1, {2, 1, 1}};
  qkv.row_axes = 2;
  const auto catalog = CatalogOf().Add(qkv).Done();
  State state = FusedByHand(2);
  int32_t from = 2;
  for (const int32_t tp : {1, 4, 2}) {
    SCOPED_TRACE(fmt::format("tp {} to {}", from, tp));
    const SwitchResult hop = RunSwitch(*MapOf(catalog, fmt::format("tp={}", from)), state,
                                       *MapOf(catalog, fmt::format("tp={}", tp)), {});
    ASSERT_TRUE(hop.ok()) << hop.ToString();
    EXPECT_EQ(hop.new_state, FusedByHand(tp));
    state = hop.new_state;
    from = tp;
  }
}

TEST(CaseC05, GateAndUp) {
  const auto catalog =
      CatalogOf().Add("gate_up", {2, 8, 3}, Split::Balanced(1), {Home::Layer(0)}).Done();
  ExpectSurvives(catalog, {"tp=2", "tp=1", "tp=4", "tp=3", "tp=2"});
  // By hand: at tp=2 rank 1 has gate rows 4 to 7, then up rows 4 to 7; at tp=1 all gate, all up.
  const auto rows = [&](const char* spec, RankId rank) {
    const State state = OracleState(*MapOf(catalog, spec), [](const vps::testing::Element& e) {
      return uint64_t{std::bit_cast<uint32_t>(static_cast<float>(e.index / 3))};
    });
    std::vector<float> first_column;
    const std::vector<float> all = FloatsOf(state, rank, 0);
    for (size_t i = 0; i < all.size(); i += 3) first_column.push_back(all[i]);
    return first_column;
  };
  EXPECT_THAT(rows("tp=2", 1), ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
  EXPECT_THAT(rows("tp=4", 3), ElementsAre(6, 7, 14, 15));
}

// A fused [gate; up] of 6 rows without axes for its blocks: told as blocks, a cut inside one is
// refused by name; told as opaque rows, the rows of the whole keep their order, whatever they mean.
TEST(CaseC05, WithoutBlocksAFusedWeightIsRefusedOrOpaqueRows) {
  const auto fused = [](Split split) {
    return CatalogOf().Add("gate_up", {6, 2}, std::move(split), {Home::Layer(0)}).Done();
  };
  for (const int32_t tp : {4, 6}) {
    const auto map = LayoutShardMap::Make(fused(Split::Balanced(0, 3)), {.tp = tp});
    EXPECT_EQ(map.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(map.status().message(),
                HasSubstr(fmt::format("tensor gate_up: axis 0 of 6 in blocks of 3 does not split "
                                      "over tp={}",
                                      tp)));
  }
  ExpectSurvives(fused(Split::Balanced(0, 3)), {"tp=2", "tp=1", "dp=3,zero=1", "tp=2"});
  const auto opaque = fused(Split::Rows());
  ExpectSurvives(opaque, {"tp=2", "tp=1", "tp=4", "tp=5,dp=2,zero=1", "tp=2"});
  EXPECT_EQ(MapOf(opaque, "tp=4")->ShardsOf(1)[0].box, Box({2, 0}, {4, 2})) << "rows as they are";
}

// Every layer's weight is filled with its index.
TEST(CaseC10, UnevenStagesMoveEveryLayer) {
  const auto layers = [](int32_t count) {
    CatalogOf catalog;
    for (int32_t i = 0; i < count; ++i)
      catalog.Add(fmt::format("layers.{}", i), {3}, Split::None(), {Home::Layer(i)});
    return catalog.Done();
  };
  const auto check = [&](int32_t count, const std::vector<std::string>& specs,
                         const std::vector<std::vector<int32_t>>& sizes) {
    const auto catalog = layers(count);
    const auto index_of = [&](const vps::testing::Element& e) {
      const auto layer = static_cast<float>(catalog->tensor(e.tensor).parameter);
      return uint64_t{std::bit_cast<uint32_t>(layer)};
    };
    for (size_t i = 0; i < specs.size(); ++i) {
      const auto to = MapOf(catalog, specs[i]);
      const auto from = MapOf(catalog, specs[i == 0 ? specs.size() - 1 : i - 1]);
      const SwitchResult hop = RunSwitch(*from, OracleState(*from, index_of), *to, {});
      ASSERT_TRUE(hop.ok()) << hop.ToString();
      int32_t layer = 0;
      for (size_t stage = 0; stage < sizes[i].size(); ++stage) {
        const auto& buffers = hop.new_state.at(static_cast<RankId>(stage));
        ASSERT_EQ(buffers.size(), static_cast<size_t>(3 * sizes[i][stage])) << specs[i];
        for (size_t b = 0; b < buffers.size(); ++b) {
          EXPECT_THAT(FloatsOf(hop.new_state, static_cast<RankId>(stage), b),
                      ElementsAre(layer, layer, layer))
              << specs[i] << " stage " << stage;
          if (b % 3 == 2) ++layer;
        }
      }
      EXPECT_EQ(layer, count) << "every layer once, in order";
    }
  };
  check(7, {"pp=1", "pp=2", "pp=3"}, {{7}, {4, 3}, {3, 2, 2}});
  check(10, {"pp=3", "pp=1"}, {{4, 3, 3}, {10}});
  check(30, {"pp=4", "pp=1"}, {{8, 8, 7, 7}, {30}});
  EXPECT_THAT(
      LayoutShardMap::Make(layers(7), *vps::ParseLayout("pp=2,split=3+3")).status().message(),
      HasSubstr("places 6 layers, the model has 7"));
}

std::shared_ptr<const vps::StateCatalog> TiedModel() {
  return CatalogOf()
      .Add("embedding", {6, 2}, Split::Balanced(0), {Home::Embedding(), Home::Head()})
      .Add("layers.0", {5}, Split::None(), {Home::Layer(0)})
      .Add("layers.1", {4}, Split::None(), {Home::Layer(1)})
      .Add("final_norm", {3}, Split::None(), {Home::Head()})
      .Done();
}

TEST(CaseC12, TiedEmbeddingAcrossStages) {
  const auto catalog = TiedModel();
  const State last = ExpectSurvives(catalog, {"pp=1", "pp=2", "pp=4", "pp=1"});
  EXPECT_EQ(last, OracleState(*MapOf(catalog, "pp=1"), DistinctValue));
  for (const Kind kind : {Kind::kParam, Kind::kExpAvg, Kind::kExpAvgSq}) {
    EXPECT_EQ(HeldElements(*MapOf(catalog, "pp=1"), kind), 12 + 12) << "one storage, one entry";
    EXPECT_EQ(HeldElements(*MapOf(catalog, "pp=2"), kind), 24 + 12) << "two copies";
    EXPECT_EQ(HeldElements(*MapOf(catalog, "pp=4"), kind), 24 + 12);
  }
  ExpectSurvives(catalog, {"pp=2,dp=3,zero=1", "pp=1,dp=2,zero=1",
                           "tp=2,pp=2,dp=2,zero=1,zero_order=reverse-contiguous", "pp=1"});
}

// One element of one copy differs: no switch takes either copy for the tensor without a word,
// whichever copy and kind it is and wherever the switch would take it from.
TEST(CaseC12, UnequalCopiesAreReported) {
  const auto catalog = TiedModel();
  const std::vector<std::string> kinds = {"param", "exp_avg", "exp_avg_sq"};
  for (const auto& [a, b] : {std::pair{"pp=2", "pp=1"},
                             {"pp=2", "pp=4"},
                             {"tp=2,pp=2,dp=2,zero=1", "dp=3,zero=1"},
                             {"pp=2,dp=3,zero=1", "tp=3"}}) {
    const auto from = MapOf(catalog, a);
    const auto to = MapOf(catalog, b);
    const State good = OracleState(*from, DistinctValue);
    const SwitchResult agrees = RunSwitch(*from, good, *to, {});
    EXPECT_TRUE(agrees.ok()) << agrees.ToString();
    for (const RankId rank : from->Ranks()) {
      for (const vps::Shard& shard : from->ShardsOf(rank)) {
        if (catalog->parameter_of(shard.tensor).name != "embedding") continue;
        State state = good;
        state.at(rank)
            .at(static_cast<size_t>(shard.buffer))
            .at(static_cast<size_t>(shard.offset) * 4) ^= std::byte{1};
        SCOPED_TRACE(
            fmt::format("{} to {}, {} on rank {}", a, b, catalog->NameOf(shard.tensor), rank));
        const SwitchResult result = RunSwitch(*from, state, *to, {});
        EXPECT_EQ(result.ties.code(), StatusCode::kDataLoss) << result.ToString();
        EXPECT_THAT(result.ties.message(),
                    HasSubstr("tied tensor " + catalog->NameOf(shard.tensor) + ":"));
        EXPECT_EQ(result.old_state, state) << "what they hold is left to them";
        testing::SwitchOptions unchecked;
        unchecked.verify = Verify::kOff;
        EXPECT_TRUE(RunSwitch(*from, state, *to, unchecked).ok());
      }
    }
  }
}

// Stage 0 lists the decayed weight first, stage 1 last, and rank 1 has Adam's keys in another order:
// still one catalog, one plan, and each parameter keeps what is its own. Parameters in another order
// are another catalog; the vote on the plan then names both ranks (switch_test.cc).
TEST(CaseC17, GroupsInAnotherOrderOnEachStage) {
  struct Registered {
    const char* name;
    int32_t layer;
    bool decay;
  };
  const std::vector<Registered> order = {
      {"0.w", 0, true}, {"0.norm", 0, false}, {"1.norm", 1, false}, {"1.w", 1, true}};
  const auto catalog_of = [](const std::vector<Registered>& list,
                             const std::vector<vps::KindSpec>& kinds) {
    CatalogOf catalog;
    for (const Registered& r : list) {
      catalog.Add(vps::Parameter{.name = r.name,
                                 .shape = {r.decay ? 7 : 3},
                                 .homes = {Home::Layer(r.layer)},
                                 .kinds = kinds,
                                 .weight_decay = r.decay});
    }
    return catalog.Done();
  };
  const std::vector<vps::KindSpec> adam = vps::Fp32AdamKinds();
  const auto first = catalog_of(order, adam);
  const auto second = catalog_of(order, {adam[2], adam[0], adam[1]});
  EXPECT_EQ(first->Fingerprint(), second->Fingerprint());
  const auto plan = [](const std::shared_ptr<const vps::StateCatalog>& catalog, size_t rank) {
    return testing::CompileAll(*MapOf(catalog, "pp=2"), *MapOf(catalog, "pp=1"), {}, {0, 1})[rank];
  };
  const Program sends = plan(second, 1), receives = plan(first, 0);
  EXPECT_EQ(sends.inputs_fingerprint, receives.inputs_fingerprint);
  EXPECT_EQ(sends.message_balance + receives.message_balance, 0U);
  ASSERT_EQ(sends.phases[0].sends.size(), 1U);
  ASSERT_EQ(receives.phases[0].receives.size(), 1U);
  const std::vector<Fragment>& there = sends.phases[0].sends[0].fragments;
  const std::vector<Fragment>& here = receives.phases[0].receives[0].fragments;
  ASSERT_EQ(there.size(), here.size());
  for (size_t i = 0; i < here.size(); ++i) EXPECT_EQ(there[i].piece, here[i].piece);
  ExpectSurvives(first, {"pp=2", "pp=1", "pp=2", "dp=2,zero=1", "pp=2"});
  for (const char* spec : {"pp=2", "pp=1"}) {
    const auto map = MapOf(second, spec);
    for (int32_t stage = 0; stage < map->layout().pp; ++stage) {
      for (const vps::Bucket& bucket : map->BucketsOf(stage, 0)) {
        for (const vps::BucketEntry& entry : bucket.entries) {
          const vps::Parameter& p = second->parameters()[static_cast<size_t>(entry.parameter)];
          EXPECT_EQ(p.weight_decay, p.name.ends_with(".w")) << p.name;
          EXPECT_EQ(entry.box.elems(), p.weight_decay ? 7 : 3) << p.name;
        }
      }
    }
  }
  const auto reordered = catalog_of({order[2], order[3], order[0], order[1]}, adam);
  EXPECT_NE(reordered->Fingerprint(), first->Fingerprint());
  EXPECT_NE(plan(reordered, 1).inputs_fingerprint, receives.inputs_fingerprint);
}

}  // namespace
}  // namespace dynatrain::engine
