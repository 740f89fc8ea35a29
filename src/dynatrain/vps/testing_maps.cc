#include "dynatrain/vps/testing_maps.h"

#include <algorithm>
#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace dynatrain::vps::testing {

CatalogOf& CatalogOf::Add(Parameter parameter) {
  const Status status = catalog_->Add(std::move(parameter));
  EXPECT_TRUE(status.ok()) << status.ToString();
  return *this;
}

CatalogOf& CatalogOf::Add(std::string name, const Shape& shape, Split split,
                          std::vector<Home> homes, std::vector<KindSpec> kinds, bool trainable) {
  return Add({.name = std::move(name),
              .shape = shape,
              .split = std::move(split),
              .homes = std::move(homes),
              .kinds = std::move(kinds),
              .trainable = trainable});
}

std::shared_ptr<const StateCatalog> CatalogWith(const std::vector<Parameter>& parameters) {
  CatalogOf catalog;
  for (const Parameter& p : parameters) catalog.Add(p);
  return catalog.Done();
}

Parameter Matrix(std::string name, const Shape& shape, Split split, Home home,
                 std::vector<KindSpec> kinds) {
  return {.name = std::move(name),
          .shape = shape,
          .split = std::move(split),
          .homes = {home},
          .kinds = std::move(kinds),
          .row_axes = std::max(shape.dims() - 1, 1)};
}

std::shared_ptr<const LayoutShardMap> MapOf(const std::shared_ptr<const StateCatalog>& catalog,
                                            const Layout& layout) {
  const auto map = LayoutShardMap::Make(catalog, layout);
  EXPECT_TRUE(map.ok()) << map.status().ToString();
  return *map;
}

std::shared_ptr<const LayoutShardMap> MapOf(const std::shared_ptr<const StateCatalog>& catalog,
                                            std::string_view spec) {
  const auto layout = ParseLayout(spec);
  EXPECT_TRUE(layout.ok()) << layout.status().ToString();
  return MapOf(catalog, *layout);
}

std::vector<RankId> UnionOfRanks(const ShardMap& from, const ShardMap& to) {
  std::set<RankId> ranks;
  for (const ShardMap* map : {&from, &to}) {
    for (const RankId rank : map->Ranks()) ranks.insert(rank);
  }
  return {ranks.begin(), ranks.end()};
}

int64_t HeldElements(const ShardMap& map, Kind kind) {
  int64_t held = 0;
  for (const RankId rank : map.Ranks()) {
    for (const Shard& shard : map.ShardsOf(rank)) {
      if (map.catalog().tensor(shard.tensor).kind == kind) held += shard.box.elems();
    }
  }
  return held;
}

}  // namespace dynatrain::vps::testing
