// For tests: routes of all ranks, checked and executed element by element.
#ifndef DYNATRAIN_PLANNER_TESTING_ROUTES_H_
#define DYNATRAIN_PLANNER_TESTING_ROUTES_H_

#include <map>
#include <memory>
#include <vector>

#include "dynatrain/base/random.h"
#include "dynatrain/planner/route.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/element_oracle.h"
#include "dynatrain/vps/shard_map.h"
#include "dynatrain/vps/testing_maps.h"

namespace dynatrain::planner::testing {

using Routes = std::map<RankId, Route>;

using vps::testing::MapOf;
using vps::testing::UnionOfRanks;

// One tensor "w/param" in fp32 on layer 0.
std::shared_ptr<const vps::StateCatalog> OneMatrix(vps::Coords shape, vps::Split split);

Routes AllRoutes(const vps::ShardMap& from, const vps::ShardMap& to, const Topology& topology,
                 const PlanOptions& options = {});
ByteCount Received(const Routes& routes);

// The new state that the routes make of `state`: keeps, first hops from old shards, second hops
// from new shards that a first hop filled, derived elements as `expected` has them. Fails the test
// where an element is written twice or comes from a rank that has not got it.
vps::testing::State Apply(const vps::ShardMap& from, const vps::testing::State& state,
                          const vps::ShardMap& to, const Routes& routes,
                          const vps::testing::State* expected = nullptr);

void ExpectSendsMatchReceives(const Routes& routes);
void ExpectOrdered(const Route& route);
// A node that holds a piece serves itself; relays stay inside a node.
void ExpectNearSources(const vps::ShardMap& from, const Topology& topology, const Route& route);

// A random catalog and two maps of it, of layouts or, now and then, the same things as lists. Over
// every axis, split and buffer rule there is, or (one of four) over plain ones with explicit splits.
struct RandomMaps {
  explicit RandomMaps(Random* random);
  std::shared_ptr<const vps::StateCatalog> catalog;
  std::shared_ptr<const vps::ShardMap> from;
  std::shared_ptr<const vps::ShardMap> to;
};
Topology RandomTopology(Random* random);

// Everything above for one random (catalog, old map, new map), and more: bytes minimal, bounds met,
// A -> B -> A restores.
void CheckTriple(uint64_t seed);
// CheckTriple for seeds from `first` on, until one fails.
void CheckTriples(uint64_t first, uint64_t count);

}  // namespace dynatrain::planner::testing

#endif  // DYNATRAIN_PLANNER_TESTING_ROUTES_H_
