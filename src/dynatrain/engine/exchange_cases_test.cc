// Faults of the field whose subject is the exchange: what is sent, in which order, between whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ranges>

#include "dynatrain/base/hash.h"
#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/vps/element_oracle.h"

namespace dynatrain::engine {
namespace {

using namespace std::chrono_literals;
using testing::ExpectSurvives;
using ::testing::HasSubstr;
using testing::Numbered;
using testing::RunSwitch;
using testing::SwitchOptions;
using testing::SwitchResult;
using vps::Box;
using vps::ExplicitShardMap;
using vps::Home;
using vps::Kind;
using vps::ShardMap;
using vps::Split;
using vps::testing::CatalogOf;
using vps::testing::DistinctValue;
using vps::testing::MakeState;
using vps::testing::MapOf;
using vps::testing::OracleState;
using vps::testing::State;

// The row-parallel weight [6, 8] cut by columns over TP1, TP2 and TP4; on each side dense, in the
// middle of a buffer, transposed, or with gaps.
TEST(CaseC13, StridedViews) {
  const auto catalog = CatalogOf()
                           .Add("w", {6, 8}, Split::Balanced(1), {Home::Layer(0)},
                                {{Kind::kParam, vps::DType::kF32}})
                           .Done();
  const auto maps_of = [&](int32_t tp) {
    const int64_t columns = 8 / tp;
    const vps::Buffer buffer{"w", Kind::kParam, vps::DType::kF32, 3 + 6 * 16 * columns};
    const auto list = [&](int64_t offset, vps::Coords strides) {
      std::vector<ExplicitShardMap::Holding> holdings;
      for (RankId r = 0; r < tp; ++r) {
        const Box box({0, r * columns}, {6, (r + 1) * columns});
        holdings.push_back({r, {buffer}, {{0, box, 0, offset, strides}}});
      }
      auto map = ExplicitShardMap::Make(catalog, holdings);
      EXPECT_TRUE(map.ok()) << map.status().ToString();
      return std::shared_ptr<const ShardMap>(*map);
    };
    return std::vector<std::shared_ptr<const ShardMap>>{
        MapOf(catalog, fmt::format("tp={}", tp)), list(7, {columns, 1}),
        list(0, {1, 6}) /* transposed */, list(3, {2 * columns, 2})};
  };
  const std::vector<std::shared_ptr<const ShardMap>> one = maps_of(1), two = maps_of(2),
                                                     four = maps_of(4);
  const auto expect_moves = [](const ShardMap& from, const ShardMap& to) {
    const SwitchResult result = RunSwitch(from, MakeState(from, DistinctValue), to, {});
    EXPECT_TRUE(result.ok()) << result.ToString();
    EXPECT_EQ(result.new_state, MakeState(to, DistinctValue));
  };
  for (size_t a = 0; a < 4; ++a) {
    for (size_t b = 0; b < 4; ++b) {
      SCOPED_TRACE(fmt::format("form {} to {}", a, b));
      expect_moves(*one[a], *two[b]);
      expect_moves(*two[a], *four[b]);
      expect_moves(*four[a], *one[b]);
    }
  }
  const vps::Buffer buffer{"w", Kind::kParam, vps::DType::kF32, 48};
  const auto broadcast =
      ExplicitShardMap::Make(catalog, {{0, {buffer}, {{0, Box({0, 0}, {6, 8}), 0, 0, {0, 1}}}}});
  EXPECT_EQ(broadcast.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(broadcast.status().message(), HasSubstr("stride 0 of axis 0"));
  // By hand, for the transposed form: element (row, column) lies at column * 6 + row.
  const State transposed = MakeState(*one[2], DistinctValue);
  for (int64_t row = 0; row < 6; ++row) {
    for (int64_t column = 0; column < 8; ++column) {
      uint32_t bits = 0;
      std::memcpy(&bits, &transposed.at(0)[0][static_cast<size_t>(column * 6 + row) * 4], 4);
      EXPECT_EQ(bits, DistinctValue({0, row * 8 + column}));
    }
  }
}

// Ranks with nothing to say, tensors without elements, fewer heads than ranks.
TEST(CaseC14, ZeroBytePieces) {
  const auto catalog = CatalogOf()
                           .Add("empty", {0, 8}, Split::Balanced(0), {Home::Layer(0)})
                           .Add("kv", {2, 5}, Split::Balanced(0), {Home::Layer(0)})
                           .Done();
  const std::vector<std::string> specs = {"tp=1,dp=1", "tp=4,dp=1", "tp=1,dp=4,zero=1",
                                          "tp=1,dp=1,ranks=3", "tp=2,dp=2"};
  for (const std::string& a : specs) {
    for (const std::string& b : specs) {
      SCOPED_TRACE(a + " to " + b);
      const auto from = MapOf(catalog, a);
      const auto to = MapOf(catalog, b);
      SwitchOptions options;
      options.ranks = {0, 1, 2, 3, 5};
      const SwitchResult result = RunSwitch(*from, OracleState(*from, DistinctValue), *to, options);
      ASSERT_TRUE(result.ok()) << result.ToString();
      EXPECT_EQ(result.new_state, OracleState(*to, DistinctValue));
      for (const Program& program : testing::CompileAll(*from, *to, {}, options.ranks)) {
        for (const auto* messages : {&program.phases[0].sends, &program.phases[0].receives}) {
          for (const Message& message : *messages) {
            for (const Fragment& fragment : message.fragments)
              EXPECT_GT(fragment.region.bytes(), 0);
          }
        }
      }
    }
  }
}

// What one rank has for another.
struct Parcel {
  RankId from, to;
  int64_t elems;
};

// Everyone has something for all others: from 1 to 500 pieces, of 4 B to 8 MiB. The pair with the
// most pieces also has the largest; for the other pairs, more pieces are smaller ones.
std::vector<Parcel> EveryoneToAll(int n) {
  std::vector<Parcel> parcels;
  Random random(static_cast<uint64_t>(n));
  const int pairs = n * (n - 1);
  int pair = 0;
  for (RankId from = 0; from < n; ++from) {
    for (RankId to = 0; to < n; ++to) {
      if (from == to) continue;
      const int k = (pair++ * 7 + 3) % pairs;  // 0 .. pairs - 1, mixed
      const int64_t pieces = 1 + 499 * k / (pairs - 1);
      const int64_t largest = k == pairs - 1 ? 8 << 20 : int64_t{4} << (20 - 19 * k / (pairs - 2));
      for (int64_t i = 0; i < pieces; ++i) {
        const int64_t bytes = i == 0 ? largest : 4 * random.Between(1, 60);
        parcels.push_back({from, to, bytes / 4});
      }
      if (pieces > 1) parcels.back().elems = 1;
    }
  }
  return parcels;
}

struct Exchange {
  std::shared_ptr<const ShardMap> from, to;
};

// One tensor for each parcel, dense one after the other on either side.
Exchange MapsOf(int n, const std::vector<Parcel>& parcels) {
  CatalogOf catalog;
  std::vector<ExplicitShardMap::Holding> before, after;
  for (RankId r = 0; r < n; ++r) {
    before.push_back({r, {{"b", Kind::kParam, vps::DType::kF32, 0}}, {}});
    after.push_back({r, {{"a", Kind::kParam, vps::DType::kF32, 0}}, {}});
  }
  const auto place = [](ExplicitShardMap::Holding* holding, vps::TensorId tensor, int64_t elems) {
    const int64_t start = holding->buffers[0].elems;
    holding->shards.push_back({tensor, Box({0}, {elems}), 0, start, {1}});
    holding->buffers[0].elems += elems;
  };
  for (const Parcel& parcel : parcels) {
    const auto tensor = static_cast<vps::TensorId>(&parcel - parcels.data());
    catalog.Add(fmt::format("t{}", tensor), {parcel.elems}, Split::None(), {Home::Layer(0)},
                {{Kind::kParam, vps::DType::kF32}});
    place(&before[static_cast<size_t>(parcel.from)], tensor, parcel.elems);
    place(&after[static_cast<size_t>(parcel.to)], tensor, parcel.elems);
  }
  auto from = ExplicitShardMap::Make(catalog.Done(), before);
  auto to = ExplicitShardMap::Make(catalog.Done(), after);
  EXPECT_TRUE(from.ok() && to.ok());
  return {*from, *to};
}

TEST(CaseC25, EveryoneSendsToAllOthers) {
  for (const int n : {3, 4, 5}) {
    SCOPED_TRACE(fmt::format("{} ranks", n));
    const std::vector<Parcel> parcels = EveryoneToAll(n);
    std::map<std::pair<RankId, RankId>, int64_t> pieces;
    const auto [least, most] = std::ranges::minmax_element(parcels, {}, &Parcel::elems);
    for (const Parcel& parcel : parcels) ++pieces[{parcel.from, parcel.to}];
    EXPECT_EQ(pieces.size(), static_cast<size_t>(n * (n - 1)));
    const auto counts = std::ranges::minmax(std::views::values(pieces));
    EXPECT_EQ(std::pair(counts.min, counts.max), (std::pair<int64_t, int64_t>{1, 500}));
    EXPECT_EQ(std::pair(least->elems, most->elems), (std::pair<int64_t, int64_t>{1, 2 << 20}));

    const Exchange exchange = MapsOf(n, parcels);
    SwitchOptions options;
    options.transport = {.max_outstanding = 1, .max_message = 1 << 20, .timing_seed = 5};
    // A window of 1 sends and receives round by round; a larger one lists receives first.
    options.change = [n](Program* program) { program->window = program->rank % 2 == 0 ? n : 1; };
    const State before = Numbered(*exchange.from);
    const SwitchResult result = RunSwitch(*exchange.from, before, *exchange.to, options);
    ASSERT_TRUE(result.ok()) << result.ToString();
    EXPECT_TRUE(result.new_state == Numbered(*exchange.to));
    for (const auto& [rank, stats] : result.stats) {
      EXPECT_EQ(stats.messages, n - 1) << "one message for each pair";
    }
  }
}

// Paired rounds, the same on all ranks: in a round each rank meets one other, and both know it.
TEST(CaseC25, TheScheduleIsOneFunctionOnAllRanks) {
  for (const int n : {3, 4, 5}) {
    const Exchange exchange = MapsOf(n, EveryoneToAll(n));
    std::map<std::pair<RankId, int32_t>, RankId> met;  // by rank and round
    for (const Program& program :
         testing::CompileAll(*exchange.from, *exchange.to, {},
                             testing::UnionOfRanks(*exchange.from, *exchange.to))) {
      for (const auto* messages : {&program.phases[0].sends, &program.phases[0].receives}) {
        for (const Message& message : *messages) {
          const auto [it, fresh] = met.try_emplace({program.rank, message.round}, message.peer);
          EXPECT_EQ(it->second, message.peer);
        }
      }
    }
    EXPECT_EQ(met.size(), static_cast<size_t>(n * (n - 1)));
    for (const auto& [place, peer] : met) EXPECT_EQ((met.at({peer, place.second})), place.first);
  }
}

// One rank of an exchange leaves out one message: its peer's wait ends at the deadline and names
// the pair.
TEST(CaseC25, AMismatchIsATimeoutThatNamesThePair) {
  for (const int n : {3, 4, 5}) {
    std::vector<Parcel> parcels;
    for (RankId from = 0; from < n; ++from) {
      for (RankId to = 0; to < n; ++to) {
        for (int i = 0; from != to && i < 7; ++i) parcels.push_back({from, to, 3 + i});
      }
    }
    const Exchange exchange = MapsOf(n, parcels);
    SwitchOptions options;
    options.timeout = 200ms;
    options.change = [](Program* program) {
      if (program->rank != 1) return;
      std::erase_if(program->phases[0].sends, [](const Message& m) { return m.peer == 2; });
    };
    const State before = Numbered(*exchange.from);
    const SwitchResult result = RunSwitch(*exchange.from, before, *exchange.to, options);
    EXPECT_EQ(result.status.at(2).code(), StatusCode::kDeadlineExceeded) << result.ToString();
    EXPECT_THAT(result.status.at(2).message(), HasSubstr("receive 2 <- 1"));
    EXPECT_EQ(result.old_state, before);
  }
}

// State that lives in {1, 3} or {3, 1} goes to {2, 0}; ranks are identities everywhere.
TEST(CaseC26, RanksOfASubgroup) {
  const auto catalog = CatalogOf()
                           .Add("up", {12, 10}, Split::Balanced(0), {Home::Layer(0)})
                           .Add("down", {10, 12}, Split::Balanced(1), {Home::Layer(1)})
                           .Add("norm", {11}, Split::None(), {Home::Layer(1)})
                           .Done();
  for (const std::string ranks : {"1+3", "3+1"}) {
    for (const std::string degrees : {"tp=2,dp=1", "tp=1,dp=2,zero=1", "pp=2,dp=1"}) {
      SwitchOptions options;
      options.ranks = {0, 1, 2, 3};
      const std::string from = degrees + ",ranks=" + ranks;
      ExpectSurvives(catalog, {from, degrees + ",ranks=2+0", from}, DistinctValue, options);
      // Here a rank is not its place among those that take part either.
      options.ranks = {1, 2, 3, 5};
      ExpectSurvives(catalog, {from, degrees + ",ranks=5+2", from}, DistinctValue, options);
    }
  }
  // By hand, tp=2: the first half of `up` is with rank 3 of {3, 1} and goes to rank 2 of {2, 0}.
  const auto from = MapOf(catalog, "tp=2,dp=1,ranks=3+1");
  const auto to = MapOf(catalog, "tp=2,dp=1,ranks=2+0");
  EXPECT_EQ(from->ShardsOf(3)[0].box, Box({0, 0}, {6, 10}));
  int met = 0;
  for (const Program& program : testing::CompileAll(*from, *to, {}, {0, 1, 2, 3})) {
    const std::map<RankId, RankId> peer = {{3, 2}, {1, 0}, {2, 3}, {0, 1}};
    for (const auto* messages : {&program.phases[0].sends, &program.phases[0].receives}) {
      for (const Message& message : *messages) {
        for (const Fragment& fragment : message.fragments) {
          if (fragment.piece.tensor != 0) continue;  // up/param
          EXPECT_EQ(message.peer, peer.at(program.rank));
          ++met;
        }
      }
    }
  }
  EXPECT_EQ(met, 4) << "two senders, two receivers";
  const auto route = planner::PlanRoute(*from, *to, {}, 2);
  ASSERT_TRUE(route.ok());
  const auto outside = Compile(*route, *from, *to, {}, {0, 1, 2});
  EXPECT_EQ(outside.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(outside.status().message(), HasSubstr("rank 3 is not among the 3 ranks"));
}

// A piece of 5 MiB + 3 B over a transport that takes 1 MiB, and a length that the two sides
// see differently.
TEST(CaseC28, LongPiecesAreCutAndMismatchesAreErrors) {
  const auto catalog = CatalogOf()
                           .Add("long", {(5 << 20) + 3}, Split::None(), {Home::Layer(0)},
                                {{Kind::kParam, vps::DType::kU8}})
                           .Done();
  const auto from = MapOf(catalog, "dp=1");
  const auto to = MapOf(catalog, "dp=1,ranks=1");
  State before;
  before[0] = {std::vector<std::byte>((5 << 20) + 3)};
  for (size_t i = 0; i < before[0][0].size(); ++i)
    before[0][0][i] = static_cast<std::byte>(Mix64(i));
  SwitchOptions options;
  options.transport = {.max_message = 1 << 20};
  const SwitchResult result = RunSwitch(*from, before, *to, options);
  ASSERT_TRUE(result.ok()) << result.ToString();
  EXPECT_TRUE(result.new_state.at(1) == before.at(0));

  options.timeout = 500ms;
  options.change = [](Program* program) {
    if (program->rank != 1) return;
    Message& message = program->phases[0].receives[0];
    message.fragments[0].region.extent[0] -= 5;
    message.bytes -= 5;
    message.runs[0].bytes -= 5;
  };
  const SwitchResult mismatch = RunSwitch(*from, before, *to, options);
  EXPECT_FALSE(mismatch.status.at(0).ok());
  EXPECT_FALSE(mismatch.status.at(1).ok());
  EXPECT_EQ(mismatch.old_state, before);
}

// The old holders are ranks 1 and 3; 0 and 2 are new and hold garbage, which goes nowhere. A shard
// that no holder is left of is refused, never made up.
TEST(CaseC30, NewcomersAreNoSource) {
  const auto catalog = CatalogOf()
                           .Add("w", {7, 3}, Split::Balanced(0), {Home::Layer(0)})
                           .Add("norm", {5}, Split::None(), {Home::Layer(0)})
                           .Done();
  const auto from = MapOf(catalog, "dp=2,zero=1,ranks=1+3");
  for (const char* spec : {"dp=4,zero=1,ranks=0-3", "tp=2,dp=2,zero=1,ranks=2+0+3+1"}) {
    const auto to = MapOf(catalog, spec);
    for (const Program& program : testing::CompileAll(*from, *to, {}, {0, 1, 2, 3})) {
      EXPECT_TRUE(program.rank % 2 == 1 || program.phases[0].sends.empty());
      for (const Message& message : program.phases[0].receives) EXPECT_EQ(message.peer % 2, 1);
    }
    ExpectSurvives(catalog, {"dp=2,zero=1,ranks=1+3", spec});
  }
  const auto survivor = ExplicitShardMap::Copy(catalog, *from, {1}, /*allow_missing=*/true);
  ASSERT_TRUE(survivor.ok());
  const auto route = planner::PlanRoute(**survivor, *MapOf(catalog, "dp=1,ranks=1"), {}, 1);
  EXPECT_EQ(route.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(route.status().message(), HasSubstr("/exp_avg"));
}

}  // namespace
}  // namespace dynatrain::engine
