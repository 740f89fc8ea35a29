// For tests: catalogs in a line or two, maps of layouts, state that survives a chain of them.
#ifndef DYNATRAIN_VPS_TESTING_MAPS_H_
#define DYNATRAIN_VPS_TESTING_MAPS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps::testing {

// Builds a catalog; fails the test where a parameter is refused.
class CatalogOf {
 public:
  CatalogOf& Add(Parameter parameter);
  CatalogOf& Add(std::string name, const Shape& shape, Split split, std::vector<Home> homes,
                 std::vector<KindSpec> kinds = Fp32AdamKinds(), bool trainable = true);
  std::shared_ptr<const StateCatalog> Done() const { return catalog_; }

 private:
  std::shared_ptr<StateCatalog> catalog_ = std::make_shared<StateCatalog>();
};

std::shared_ptr<const StateCatalog> CatalogWith(const std::vector<Parameter>& parameters);

// A parameter of layer 0 whose rows are all of its axes but the last.
Parameter Matrix(std::string name, const Shape& shape, Split split, Home home = Home::Layer(0),
                 std::vector<KindSpec> kinds = Fp32AdamKinds());

// The map of a layout; fails the test if there is none.
std::shared_ptr<const LayoutShardMap> MapOf(const std::shared_ptr<const StateCatalog>& catalog,
                                            const Layout& layout);
std::shared_ptr<const LayoutShardMap> MapOf(const std::shared_ptr<const StateCatalog>& catalog,
                                            std::string_view spec);

// The ranks of both maps, ascending.
std::vector<RankId> UnionOfRanks(const ShardMap& from, const ShardMap& to);

// Elements of real state that a kind has over all ranks.
int64_t HeldElements(const ShardMap& map, Kind kind);

}  // namespace dynatrain::vps::testing

#endif  // DYNATRAIN_VPS_TESTING_MAPS_H_
