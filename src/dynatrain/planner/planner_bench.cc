// One rank's route at scale: time on one core and peak heap, for maps made beforehand and with
// making them.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "dynatrain/planner/route.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/shard_map.h"

namespace {

// Bytes that are allocated now, and the most since the mark: what operator new hands out.
struct Heap {
  int64_t now = 0;
  int64_t peak = 0;
};
Heap heap;

}  // namespace

void* operator new(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  heap.now += static_cast<int64_t>(malloc_usable_size(memory));
  heap.peak = std::max(heap.peak, heap.now);
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) heap.now -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace dynatrain::planner {
namespace {

using vps::Experts;
using vps::Home;
using vps::LayoutShardMap;
using vps::Parameter;
using vps::Shape;
using vps::Split;
using vps::StateCatalog;

struct MoeShape {
  int32_t layers;
  int64_t hidden;
  int64_t groups;  // key-value heads
  int64_t q_per_group;
  int64_t head_dim;
  int64_t experts;
  int64_t ffn;
  int64_t vocab;
  bool stacks;  // experts as [expert, ..], or one tensor for each
};

// 61 layers of 384 experts: 1.04e12 parameters, 14 bytes of state for each.
constexpr MoeShape kTrillion{61, 7168, 8, 8, 128, 384, 2048, 163840, true};
constexpr MoeShape kSmallMoe{0, 2048, 8, 4, 128, 16, 1024, 65536, true};

class CatalogMaker {
 public:
  std::shared_ptr<const StateCatalog> Make(const MoeShape& m) {
    Add("embedding", {m.vocab, m.hidden}, Split::Balanced(0), Home::Embedding());
    for (int32_t layer = 0; layer < m.layers; ++layer) AddLayer(m, layer);
    Add("final_norm", {m.hidden}, Split::None(), Home::Head());
    Add("head", {m.vocab, m.hidden}, Split::Balanced(0), Home::Head());
    return catalog_;
  }

 private:
  void AddLayer(const MoeShape& m, int32_t layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    const Home home = Home::Layer(layer);
    Add(prefix + "input_norm", {m.hidden}, Split::None(), home);
    Add(prefix + "qkv", {m.groups, m.q_per_group + 2, m.head_dim, m.hidden}, Split::Balanced(0),
        home);
    Add(prefix + "out", {m.hidden, m.groups, m.q_per_group, m.head_dim}, Split::Balanced(1), home);
    Add(prefix + "post_norm", {m.hidden}, Split::None(), home);
    Add(prefix + "router", {m.experts, m.hidden}, Split::None(), home);
    if (m.stacks) {
      Add(prefix + "gate_up", {m.experts, 2, m.ffn, m.hidden}, Split::Balanced(2), home,
          Experts::Stack(0));
      Add(prefix + "down", {m.experts, m.hidden, m.ffn}, Split::Balanced(2), home,
          Experts::Stack(0));
      return;
    }
    for (int32_t e = 0; e < m.experts; ++e) {
      const Experts one = Experts::One(e, static_cast<int32_t>(m.experts));
      Add(fmt::format("{}experts.{}.gate_up", prefix, e), {2, m.ffn, m.hidden}, Split::Balanced(1),
          home, one);
      Add(fmt::format("{}experts.{}.down", prefix, e), {m.hidden, m.ffn}, Split::Balanced(1), home,
          one);
    }
  }

  void Add(const std::string& name, const Shape& shape, Split split, const Home& home,
           std::optional<Experts> experts = std::nullopt) {
    Parameter p;
    p.name = name;
    p.shape = shape;
    p.split = std::move(split);
    p.homes = {home};
    p.kinds = vps::Bf16AdamKinds();
    p.experts = experts;
    const Status status = catalog_->Add(std::move(p));
    DT_CHECK_MSG(status.ok(), status.ToString());
  }

  std::shared_ptr<StateCatalog> catalog_ = std::make_shared<StateCatalog>();
};

const Topology kCluster{.name = "nodes of 8",
                        .ranks_per_node = 8,
                        .intra_node_bytes_per_s = 2e11,
                        .inter_node_bytes_per_s = 1e11};

std::shared_ptr<const LayoutShardMap> MapOf(std::shared_ptr<const StateCatalog> catalog,
                                            const std::string& spec) {
  return *LayoutShardMap::Make(std::move(catalog), *vps::ParseLayout(spec));
}

struct Change {
  std::shared_ptr<const StateCatalog> catalog;
  std::string from;
  std::string to;
};

Route PlanOne(const LayoutShardMap& from, const LayoutShardMap& to, RankId rank) {
  Result<Route> route = PlanRoute(from, to, kCluster, rank, {.relays = true});
  DT_CHECK_MSG(route.ok(), route.status().ToString());
  return *std::move(route);
}

void Describe(benchmark::State& state, const Route& route, const Heap& before) {
  state.counters["pieces"] =
      static_cast<double>(route.keeps.size() + route.sends.size() + route.receives.size() +
                          route.relay_sends.size() + route.relay_receives.size());
  state.counters["moved_MB"] = static_cast<double>(route.received_bytes + route.sent_bytes) / 1e6;
  state.counters["peak_heap_MiB"] =
      static_cast<double>(heap.peak - before.now) / static_cast<double>(1 << 20);
}

// The route alone: what a rank does for every switch between the two layouts.
void TimeRoute(benchmark::State& state, const Change& change, RankId rank) {
  const auto from = MapOf(change.catalog, change.from);
  const auto to = MapOf(change.catalog, change.to);
  heap.peak = heap.now;
  const Heap before = heap;
  for (auto _ : state) benchmark::DoNotOptimize(PlanOne(*from, *to, rank));
  Describe(state, PlanOne(*from, *to, rank), before);
}

// With both shard maps, from the two layouts on.
void TimeMapsAndRoute(benchmark::State& state, const Change& change, RankId rank) {
  heap.peak = heap.now;
  const Heap before = heap;
  const auto all = [&] {
    return PlanOne(*MapOf(change.catalog, change.from), *MapOf(change.catalog, change.to), rank);
  };
  for (auto _ : state) benchmark::DoNotOptimize(all());
  Describe(state, all(), before);
}

const Change& Trillion(bool stacks) {
  static std::map<bool, Change> changes;
  Change& change = changes[stacks];
  if (!change.catalog) {
    MoeShape shape = kTrillion;
    shape.stacks = stacks;
    change = {CatalogMaker().Make(shape), "tp=8,pp=16,dp=128,ep=64,zero=1",
              "tp=4,pp=8,dp=512,ep=128,zero=1"};
  }
  return change;
}

void BM_Trillion_Route(benchmark::State& state) {
  TimeRoute(state, Trillion(state.range(1) == 1), static_cast<RankId>(state.range(0)));
}
void BM_Trillion_MapsAndRoute(benchmark::State& state) {
  TimeMapsAndRoute(state, Trillion(state.range(1) == 1), static_cast<RankId>(state.range(0)));
}
BENCHMARK(BM_Trillion_Route)
    ->ArgNames({"rank", "stacks"})
    ->ArgsProduct({{0, 5000, 16383}, {1, 0}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Trillion_MapsAndRoute)
    ->ArgNames({"rank", "stacks"})
    ->ArgsProduct({{0, 5000, 16383}, {1, 0}})
    ->Unit(benchmark::kMillisecond);

// Two layers for each of ranks / 32 stages; a rank in the middle of the pipeline.
Change Deep(int64_t ranks) {
  const int64_t stages = ranks / 32;
  MoeShape shape = kSmallMoe;
  shape.layers = static_cast<int32_t>(2 * stages);
  return {CatalogMaker().Make(shape), fmt::format("tp=8,pp={},dp=4,ep=8,zero=1", stages),
          fmt::format("tp=4,pp={},dp=8,ep=8,zero=1", stages)};
}
void BM_LayersAndRanks_Route(benchmark::State& state) {
  TimeRoute(state, Deep(state.range(0)), static_cast<RankId>(state.range(0) / 2 + 3));
}
void BM_LayersAndRanks_MapsAndRoute(benchmark::State& state) {
  TimeMapsAndRoute(state, Deep(state.range(0)), static_cast<RankId>(state.range(0) / 2 + 3));
}
BENCHMARK(BM_LayersAndRanks_Route)
    ->ArgName("ranks")
    ->RangeMultiplier(4)
    ->Range(128, 16384)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_LayersAndRanks_MapsAndRoute)
    ->ArgName("ranks")
    ->RangeMultiplier(4)
    ->Range(128, 16384)
    ->Unit(benchmark::kMillisecond);

Change Wide(int64_t dp) {
  MoeShape shape = kSmallMoe;
  shape.layers = 16;
  return {CatalogMaker().Make(shape), fmt::format("tp=8,pp=4,dp={}", dp),
          fmt::format("tp=4,pp=8,dp={}", dp)};
}
void BM_Dp_Route(benchmark::State& state) {
  TimeRoute(state, Wide(state.range(0)), static_cast<RankId>(state.range(0) * 16 + 3));
}
void BM_Dp_MapsAndRoute(benchmark::State& state) {
  TimeMapsAndRoute(state, Wide(state.range(0)), static_cast<RankId>(state.range(0) * 16 + 3));
}
BENCHMARK(BM_Dp_Route)
    ->ArgName("dp")
    ->RangeMultiplier(4)
    ->Range(4, 512)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Dp_MapsAndRoute)
    ->ArgName("dp")
    ->RangeMultiplier(4)
    ->Range(4, 512)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dynatrain::planner
