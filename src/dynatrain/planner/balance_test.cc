// How evenly ranks share the sending: against what perfect striping would give each of them, on
// random models of realistic sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "dynatrain/planner/source_table.h"
#include "dynatrain/planner/sources.h"
#include "dynatrain/planner/testing_routes.h"
#include "dynatrain/planner/traffic_classes.h"

namespace dynatrain::planner {
namespace {

using testing::AllRoutes;
using testing::Routes;
using vps::Experts;
using vps::HolderSet;
using vps::Home;
using vps::Shape;
using vps::ShardMap;
using vps::Split;
using vps::StateCatalog;

class RandomModel {
 public:
  explicit RandomModel(Random* random) : random_(random) {
    const int64_t hidden = 64 * random->Between(8, 40);
    const int64_t groups = random->Between(2, 9);
    const int64_t ffn = 32 * random->Between(20, 90);
    const int64_t vocab = random->Between(5000, 60000);
    const int64_t experts = random->OneIn(2) ? 0 : random->Between(3, 20);
    const bool stacks = random->OneIn(2);
    Add("embedding", {vocab, hidden}, Split::Balanced(0), Home::Embedding());
    const auto layers = static_cast<int32_t>(random->Between(8, 25));
    for (int32_t layer = 0; layer < layers; ++layer) {
      const std::string prefix = fmt::format("layers.{}.", layer);
      const Home home = Home::Layer(layer);
      Add(prefix + "norm", {hidden}, Split::None(), home);
      Add(prefix + "qkv", {groups, 6, 64, hidden}, Split::Balanced(0), home);
      Add(prefix + "out", {hidden, groups, 4, 64}, Split::Balanced(1), home);
      if (experts == 0) {
        Add(prefix + "gate_up", {2, ffn, hidden}, Split::Balanced(1), home);
        Add(prefix + "down", {hidden, ffn}, Split::Balanced(1), home);
      } else if (stacks) {
        Add(prefix + "gate_up", {experts, 2, ffn / 8, hidden}, Split::Balanced(2), home,
            Experts::Stack(0));
        Add(prefix + "down", {experts, hidden, ffn / 8}, Split::Balanced(2), home,
            Experts::Stack(0));
      }
      for (int32_t e = 0; !stacks && e < experts; ++e) {
        Add(fmt::format("{}{}.gate_up", prefix, e), {2, ffn / 8, hidden}, Split::Balanced(1), home,
            Experts::One(e, static_cast<int32_t>(experts)));
      }
    }
    Add("head", {vocab, hidden}, Split::Balanced(0), Home::Head());
  }
  std::shared_ptr<const StateCatalog> catalog() const { return catalog_.Done(); }

  std::string Spec() const {
    const int64_t tp = random_->Between(1, 4);
    const int64_t pp = random_->Between(1, 4);
    const int64_t dp = random_->Between(1, 6);
    const int64_t cp = random_->OneIn(4) ? 2 : 1;
    int64_t ep = random_->Between(1, 4);
    while (tp * cp * dp % ep != 0) --ep;
    const char* orders[] = {"forward-bucketed", "forward-contiguous", "reverse-bucketed:9000000",
                            "megatron",         "forward-param",      "forward-dim0"};
    return fmt::format("tp={},pp={},dp={},cp={},ep={},zero={},zero_order={}", tp, pp, dp, cp, ep,
                       random_->Between(0, 3), orders[random_->Between(0, 5)]);
  }

 private:
  void Add(const std::string& name, const Shape& shape, Split split, const Home& home,
           std::optional<Experts> experts = std::nullopt) {
    vps::Parameter p =
        vps::testing::Matrix(name, shape, std::move(split), home, vps::Bf16AdamKinds());
    p.experts = experts;
    catalog_.Add(std::move(p));
  }

  Random* random_;
  vps::testing::CatalogOf catalog_;
};

// What each rank sends if every piece is shared by its sources, and passed on by the ranks of a
// node, in equal parts; and how far single stripes can take it from that.
struct Ideal {
  std::map<RankId, double> bytes;
  std::map<RankId, double> grain;  // one stripe of the largest piece of each of its feeds

  double fullest() const {
    double most = 0;
    for (const auto& [rank, b] : bytes) most = std::max(most, b);
    return most;
  }
  double largest_grain() const {
    double most = 0;
    for (const auto& [rank, g] : grain) most = std::max(most, g);
    return most;
  }
  // Least bytes over most, of the ranks that send at all.
  double evenness() const {
    double least = fullest();
    for (const auto& [rank, b] : bytes) least = std::min(least, b);
    return least / fullest();
  }
};

class IdealMaker {
 public:
  IdealMaker(const Topology& topology, const PlanOptions& options)
      : topology_(topology), options_(options) {}

  void Add(const TrafficClass& cls) {
    std::map<int32_t, std::vector<RankId>> holders;
    std::vector<RankId> all;
    for (int64_t i = 0; i < cls.holders.size(); ++i) {
      holders[topology_.NodeOf(cls.holders.At(i))].push_back(cls.holders.At(i));
      all.push_back(cls.holders.At(i));
    }
    std::map<int32_t, std::vector<RankId>> takers;
    for (int64_t i = 0; i < cls.needers.size(); ++i) {
      const RankId rank = cls.needers.At(i);
      if (!cls.holders.Contains(rank)) takers[topology_.NodeOf(rank)].push_back(rank);
    }
    for (const auto& [node, ranks] : takers) {
      const auto near = holders.find(node);
      AddFeed(cls, near == holders.end() ? all : near->second, near != holders.end(), ranks);
    }
  }
  const Ideal& ideal() const { return ideal_; }

 private:
  void AddFeed(const TrafficClass& cls, const std::vector<RankId>& sources, bool near,
               const std::vector<RankId>& takers) {
    const bool grouped = options_.relays && !(near && takers.size() <= sources.size());
    const double copies = grouped ? 1 : static_cast<double>(takers.size());
    const auto ways = std::min<double>(
        kMaxStripes, static_cast<double>(std::max(sources.size(), grouped ? takers.size() : 1)));
    const double largest =
        static_cast<double>(*std::max_element(cls.pieces.begin(), cls.pieces.end()));
    const double stripe =
        std::max(largest / ways, std::min(largest, static_cast<double>(options_.stripe_bytes)));
    const auto bytes = static_cast<double>(cls.bytes);
    for (const RankId rank : sources) {
      ideal_.bytes[rank] += bytes * copies / static_cast<double>(sources.size());
      ideal_.grain[rank] += sources.size() == 1 ? 0 : stripe;
    }
    if (!grouped || takers.size() == 1) return;
    const auto mates = static_cast<double>(takers.size() - 1);
    for (const RankId rank : takers) {
      ideal_.bytes[rank] += bytes * mates / static_cast<double>(takers.size());
      ideal_.grain[rank] += stripe * mates;
    }
  }

  const Topology& topology_;
  const PlanOptions& options_;
  Ideal ideal_;
};

struct Loads {
  double fullest = 0;
  double mean = 0;  // of the ranks that send in the ideal
};

Loads LoadsOf(const Routes& routes, const Ideal& ideal) {
  Loads loads;
  double total = 0;
  for (const auto& [rank, route] : routes) {
    loads.fullest = std::max(loads.fullest, static_cast<double>(route.sent_bytes));
    total += static_cast<double>(route.sent_bytes);
  }
  loads.mean = total / static_cast<double>(std::max<size_t>(ideal.bytes.size(), 1));
  return loads;
}

struct Tally {
  int plans = 0;     // with fine enough pieces
  int even = 0;      // of them, where equal shares are equal loads
  double worst = 0;  // fullest / fullest of the ideal
};

enum class Holders { kAll, kSurvivors };

// With `change`, of these two layouts instead of random ones.
void CheckBalance(uint64_t seed, Holders which, Tally* tally,
                  std::optional<std::pair<std::string, std::string>> change = std::nullopt) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Random random(seed);
  const RandomModel model(&random);
  const auto catalog = model.catalog();
  const std::string specs[] = {change ? change->first : model.Spec(),
                               change ? change->second : model.Spec()};
  SCOPED_TRACE(specs[0] + " to " + specs[1]);
  std::shared_ptr<const ShardMap> from = testing::MapOf(catalog, specs[0]);
  const auto to = testing::MapOf(catalog, specs[1]);
  Topology topology;
  topology.ranks_per_node = random.OneIn(3) ? 1 << 20 : static_cast<int32_t>(random.Between(2, 8));
  PlanOptions options{.relays = random.OneIn(2)};
  if (which == Holders::kSurvivors) {
    std::vector<RankId> left = from->Ranks();
    std::erase_if(left, [&](RankId) { return random.OneIn(5); });
    const auto list = vps::ExplicitShardMap::Copy(catalog, *from, left, /*allow_missing=*/true);
    ASSERT_TRUE(list.ok());
    from = *list;
    auto table = SourceTable::Solve(*from, *to, topology, options);
    if (table.status().code() == StatusCode::kDataLoss) return;
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    options.table = *table;
  }
  const auto classes = ClassesBetween(*from, *to, /*with_pieces=*/true);
  ASSERT_TRUE(classes.ok()) << classes.status().ToString();
  IdealMaker maker(topology, options);
  for (const TrafficClass& cls : *classes) maker.Add(cls);
  const Ideal& ideal = maker.ideal();
  if (ideal.fullest() == 0 || ideal.largest_grain() > 0.04 * ideal.fullest()) return;
  const Loads loads = LoadsOf(AllRoutes(*from, *to, topology, options), ideal);
  ++tally->plans;
  tally->worst = std::max(tally->worst, loads.fullest / ideal.fullest());
  EXPECT_LE(loads.fullest, 1.1 * ideal.fullest());
  if (ideal.evenness() < 0.95) return;
  ++tally->even;
  EXPECT_LE(loads.fullest, 1.1 * loads.mean);
}

TEST(SourceLoad, IsSharedWhereStripesOrTurnsCanShareIt) {
  Tally tally;
  for (uint64_t seed = 1; seed <= 60; ++seed) CheckBalance(seed, Holders::kAll, &tally);
  EXPECT_GE(tally.plans, 20);
  RecordProperty("worst", std::to_string(tally.worst));
}

// Where equal shares are equal loads: the fullest source against the mean of all.
TEST(SourceLoad, IsEvenWhereReplicasGrowOrMove) {
  const std::pair<std::string, std::string> changes[] = {
      {"dp=4", "dp=8"},
      {"tp=2,dp=3", "tp=2,dp=7"},
      {"dp=5,ranks=0-4", "dp=5,ranks=8-12"},
      {"tp=2,dp=4,zero=1", "tp=2,dp=4,zero=1,ranks=8-15"},
      {"pp=2,dp=3", "pp=2,dp=3,ranks=6-11"},
      {"dp=6,zero=3,zero_order=forward-param", "dp=6,zero=3,zero_order=forward-param,ranks=6-11"}};
  Tally tally;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    CheckBalance(seed, Holders::kAll, &tally, changes[seed % std::size(changes)]);
  }
  EXPECT_GE(tally.even, 12);
}

TEST(SourceLoad, IsSharedAmongSurvivorsWithATable) {
  Tally tally;
  for (uint64_t seed = 1001; seed <= 1040; ++seed) CheckBalance(seed, Holders::kSurvivors, &tally);
  EXPECT_GE(tally.plans, 5);
  RecordProperty("worst", std::to_string(tally.worst));
}

}  // namespace
}  // namespace dynatrain::planner
