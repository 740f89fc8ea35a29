// For tests: random small catalogs and layouts, the same for the same seed. Extents of 0 to 9,
// ties, frozen and stateless parameters, several dtypes, every split and buffer rule, odd degrees,
// uneven stages, any order, holes in the ranks.
#ifndef DYNATRAIN_VPS_RANDOM_LAYOUTS_H_
#define DYNATRAIN_VPS_RANDOM_LAYOUTS_H_

#include <memory>
#include <vector>

#include "dynatrain/base/random.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps::testing {

// `tp`: the degrees that explicit splits must fit; a catalog is used with layouts of this tp, or
// has none (0).
std::shared_ptr<const StateCatalog> RandomCatalog(Random* random, int32_t tp);

// A layout that fits `catalog`; `tp` 0 lets the degree vary.
Layout RandomLayout(Random* random, const StateCatalog& catalog, int32_t tp);

// The same over everything there is: experts in stacks and one by one, groups that share entries,
// rows, padding, stored parts; cp, ep, etp, vpp, zero 0 to 3, every buffer rule, orders of both
// grids.
std::shared_ptr<const StateCatalog> RandomWideCatalog(Random* random);
Layout RandomWideLayout(Random* random, const StateCatalog& catalog);

// A box inside the tensor, sometimes empty, often all of it.
Box RandomBox(Random* random, const Shape& shape);

}  // namespace dynatrain::vps::testing

#endif  // DYNATRAIN_VPS_RANDOM_LAYOUTS_H_
