#include "dynatrain/trainer/testing_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dynatrain/base/bf16.h"
#include "dynatrain/bridge/c10d_groups.h"
#include "dynatrain/vps/shard_elements.h"

namespace dynatrain::trainer::testing {
namespace {

constexpr std::chrono::seconds kTimeout{50};

Status RunRank(const std::shared_ptr<const vps::LayoutShardMap>& map, RankId rank,
               const c10::intrusive_ptr<c10d::Store>& store, const RankBody& body) {
  DT_ASSIGN_OR_RETURN(
      const std::unique_ptr<bridge::GlooGroupFactory> factory,
      bridge::GlooGroupFactory::Make(
          rank, store, {.interface = "lo", .address = "", .operation_timeout = kTimeout}));
  elastic::LayoutInstance instance;
  instance.map = map;
  instance.rank = rank;
  DT_ASSIGN_OR_RETURN(instance.state,
                      engine::StateBuffers::Allocate(*map, rank, engine::Fill::kZero));
  for (const elastic::GroupSpec& spec : elastic::GroupsOfRank(map->layout(), rank)) {
    if (spec.ranks.size() == 1) continue;
    DT_ASSIGN_OR_RETURN(instance.groups[spec.axis], factory->MakeGroup("test", spec, kTimeout));
  }
  return body(instance);
}

}  // namespace

TrainerOptions SmallOptions(const std::string& data_file) {
  TrainerOptions options;
  options.model.name = "small";
  options.model.layers = 3;
  options.model.hidden = 24;
  options.model.heads = 6;
  options.model.kv_heads = 3;
  options.model.head_dim = 4;
  options.model.ffn = 29;
  options.model.vocab = 129;
  options.model.max_positions = 64;
  options.data_file = data_file;
  options.seq = 12;
  return options;
}

void Tensors::Put(const vps::Parameter& parameter, int64_t index, float value) {
  const auto count = static_cast<size_t>(vps::ElemCount(parameter.shape));
  std::vector<float>& values = values_[parameter.name];
  std::vector<bool>& set = set_[parameter.name];
  values.resize(count);
  set.resize(count);
  const auto i = static_cast<size_t>(index);
  if (set[i] && std::memcmp(&values[i], &value, sizeof(float)) != 0) ++different_[parameter.name];
  values[i] = value;
  set[i] = true;
}

void Tensors::AddState(const elastic::LayoutInstance& instance, vps::Kind kind) {
  const std::lock_guard lock(mutex_);
  for (const vps::Shard& shard : instance.map->ShardsOf(instance.rank)) {
    if (instance.map->catalog().tensor(shard.tensor).kind != kind) continue;
    const vps::Parameter& parameter = instance.map->catalog().parameter_of(shard.tensor);
    const std::byte* data = instance.state.bytes(shard.buffer).data();
    const bool bf16 = instance.map->catalog().tensor(shard.tensor).dtype == vps::DType::kBF16;
    vps::ForEachElement(parameter.shape, shard, [&](int64_t index, int64_t element) {
      Put(parameter, index,
          bf16 ? FromBf16(reinterpret_cast<const uint16_t*>(data)[element])
               : reinterpret_cast<const float*>(data)[element]);
    });
  }
}

void Tensors::AddGradients(const vps::StateCatalog& catalog,
                           const std::vector<GradientPart>& parts) {
  const std::lock_guard lock(mutex_);
  for (const GradientPart& part : parts) {
    const vps::Parameter& parameter = catalog.parameters()[static_cast<size_t>(part.parameter)];
    const vps::Shard shard{0, part.box, 0, 0, vps::RowMajorStrides(part.box.shape())};
    vps::ForEachElement(parameter.shape, shard, [&](int64_t index, int64_t element) {
      Put(parameter, index, part.values[static_cast<size_t>(element)]);
    });
  }
}

void Tensors::Set(const std::string& name, std::vector<float> values) {
  const std::lock_guard lock(mutex_);
  set_[name].assign(values.size(), true);
  values_[name] = std::move(values);
}

void Tensors::WriteTo(elastic::LayoutInstance* instance, vps::Kind kind) const {
  const std::lock_guard lock(mutex_);
  for (const vps::Shard& shard : instance->map->ShardsOf(instance->rank)) {
    if (instance->map->catalog().tensor(shard.tensor).kind != kind) continue;
    const vps::Parameter& parameter = instance->map->catalog().parameter_of(shard.tensor);
    const std::vector<float>& values = values_.at(parameter.name);
    auto* data = reinterpret_cast<float*>(instance->state.bytes(shard.buffer).data());
    vps::ForEachElement(parameter.shape, shard, [&](int64_t index, int64_t element) {
      data[element] = values[static_cast<size_t>(index)];
    });
  }
}

std::string Tensors::Faults() const {
  const std::lock_guard lock(mutex_);
  std::string faults;
  for (const auto& [name, set] : set_) {
    const auto missing = std::count(set.begin(), set.end(), false);
    if (missing > 0) faults += fmt::format("{}: {} elements missing; ", name, missing);
  }
  for (const auto& [name, count] : different_) {
    faults += fmt::format("{}: {} elements differ between replicas; ", name, count);
  }
  return faults;
}

double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    difference =
        std::max(difference, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return largest > 0 ? difference / largest : difference;
}

Status RunRanks(const std::shared_ptr<const vps::StateCatalog>& catalog, const vps::Layout& layout,
                const RankBody& body) {
  DT_ASSIGN_OR_RETURN(const std::shared_ptr<const vps::LayoutShardMap> map,
                      vps::LayoutShardMap::Make(catalog, layout));
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  const std::vector<RankId> ranks = layout.Ranks();
  std::vector<Status> statuses(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { statuses[i] = RunRank(map, ranks[i], store, body); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!statuses[i].ok())
      return statuses[i].Within(fmt::format("{}, rank {}", layout.ToString(), ranks[i]));
  }
  return {};
}

}  // namespace dynatrain::trainer::testing
