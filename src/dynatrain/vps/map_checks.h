// What a shard map may not do, whoever made it. Private to vps.
#ifndef DYNATRAIN_VPS_MAP_CHECKS_H_
#define DYNATRAIN_VPS_MAP_CHECKS_H_

#include "dynatrain/base/status.h"
#include "dynatrain/vps/layout.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {

// Refuses, by tensor, box and ranks, maps that give an element of Content::kPartialSums two holders
// or cut a tensor of Content::kWhole. With `layout`, the rule of it that cuts is named.
Status CheckContents(const ShardMap& map, const Layout* layout);

// Refuses buffers that, with all padding, could exceed 2^58 elements.
Status CheckSizes(const StateCatalog& catalog, const Layout& layout);

// Parameters whose kind param has one dtype share buffers, so their other kinds need one dtype each
// as well.
Status CheckDTypes(const StateCatalog& catalog, const Layout& layout);

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_MAP_CHECKS_H_
