#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/ranges.h>

#include "dynatrain/base/hash.h"
#include "dynatrain/vps/map_checks.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {

namespace {

// A region of a tensor whose holders are the same throughout; positions ascend.
struct Region {
  Box box;
  std::vector<int64_t> positions;
};

// Appends what is left of `box` without `hole`, which lies inside it, as disjoint boxes in
// row-major order of axes.
void AppendDifference(const Box& box, const Box& hole, std::vector<Box>* rest) {
  Coords lo = box.lo();
  Coords hi = box.hi();
  for (int axis = 0; axis < box.dims(); ++axis) {
    const auto append = [&](int64_t begin, int64_t end) {
      if (begin >= end) return;
      Coords part_lo = lo;
      Coords part_hi = hi;
      part_lo[axis] = begin;
      part_hi[axis] = end;
      rest->emplace_back(part_lo, part_hi);
    };
    append(lo[axis], hole.lo()[axis]);
    append(hole.hi()[axis], hi[axis]);
    lo[axis] = hole.lo()[axis];
    hi[axis] = hole.hi()[axis];
  }
}

std::vector<Box> Without(const Box& box, const std::vector<Box>& holes) {
  std::vector<Box> rest = {box};
  for (const Box& hole : holes) {
    std::vector<Box> next;
    for (const Box& part : rest) {
      if (Overlaps(part, hole)) {
        AppendDifference(part, Intersect(part, hole), &next);
      } else {
        next.push_back(part);
      }
    }
    rest = std::move(next);
  }
  return rest;
}

// Refines `regions` by a shard of the rank at `position`. Returns the overlap with a shard of the
// same rank, if any.
std::optional<Box> AddHolder(const Box& box, int64_t position, std::vector<Region>* regions) {
  std::vector<Region> next;
  std::vector<Box> known;
  for (Region& region : *regions) {
    if (!Overlaps(region.box, box)) {
      next.push_back(std::move(region));
      continue;
    }
    const Box common = Intersect(region.box, box);
    if (!region.positions.empty() && region.positions.back() == position) return common;
    std::vector<Box> rest;
    AppendDifference(region.box, common, &rest);
    for (const Box& part : rest) next.push_back({part, region.positions});
    known.push_back(common);
    next.push_back({common, std::move(region.positions)});
    next.back().positions.push_back(position);
  }
  for (const Box& part : Without(box, known)) next.push_back({part, {position}});
  *regions = std::move(next);
  return std::nullopt;
}

Status CheckShard(const StateCatalog& catalog, const ExplicitShardMap::Holding& holding,
                  const Shard& shard) {
  if (shard.tensor < 0 || static_cast<size_t>(shard.tensor) >= catalog.tensors().size()) {
    return InvalidArgument("rank {}: a shard names tensor {}, the catalog has {}", holding.rank,
                           shard.tensor, catalog.tensors().size());
  }
  const std::string what = fmt::format("tensor {}, rank {}, box {}", catalog.NameOf(shard.tensor),
                                       holding.rank, shard.box.ToString());
  const Shape& shape = catalog.shape_of(shard.tensor);
  if (shard.box.dims() != shape.dims() || shard.strides.dims() != shape.dims()) {
    return InvalidArgument("{}: box and strides need {} axes", what, shape.dims());
  }
  if (shard.box.empty()) return InvalidArgument("{}: a shard is never empty", what);
  if (!Box::Whole(shape).Contains(shard.box)) {
    return InvalidArgument("{}: outside the tensor {}", what, Box::Whole(shape).ToString());
  }
  if (shard.buffer < 0 || static_cast<size_t>(shard.buffer) >= holding.buffers.size()) {
    return InvalidArgument("{}: buffer {} of {}", what, shard.buffer, holding.buffers.size());
  }
  const Buffer& buffer = holding.buffers[static_cast<size_t>(shard.buffer)];
  const StateTensor& tensor = catalog.tensor(shard.tensor);
  if (buffer.kind != tensor.kind || buffer.dtype != tensor.dtype) {
    return InvalidArgument("{}: buffer {} holds {} in {}, the tensor is {} in {}", what,
                           buffer.name, KindName(buffer.kind), DTypeName(buffer.dtype),
                           KindName(tensor.kind), DTypeName(tensor.dtype));
  }
  __extension__ __int128 last = shard.offset;
  for (int axis = 0; axis < shape.dims(); ++axis) {
    const int64_t steps = shard.box.extent(axis) - 1;
    if (steps > 0 && shard.strides[axis] < 1) {
      return InvalidArgument("{}: stride {} of axis {}; strides are positive", what,
                             shard.strides[axis], axis);
    }
    last += static_cast<__int128>(steps) * shard.strides[axis];
  }
  if (shard.offset < 0 || last >= buffer.elems) {
    return InvalidArgument("{}: offset {} and strides reach outside buffer {} of {} elements", what,
                           shard.offset, buffer.name, buffer.elems);
  }
  return Status::Ok();
}

Status CheckHoldings(const StateCatalog& catalog,
                     const std::vector<ExplicitShardMap::Holding>& holdings) {
  for (size_t i = 0; i < holdings.size(); ++i) {
    if (holdings[i].rank < 0) return InvalidArgument("rank {} is no rank", holdings[i].rank);
    if (i > 0 && holdings[i].rank == holdings[i - 1].rank) {
      return InvalidArgument("rank {} is listed twice", holdings[i].rank);
    }
    for (const Buffer& buffer : holdings[i].buffers) {
      if (buffer.elems < 0) {
        return InvalidArgument("rank {}: buffer {} has {} elements", holdings[i].rank, buffer.name,
                               buffer.elems);
      }
    }
    for (const Shard& shard : holdings[i].shards)
      DT_RETURN_IF_ERROR(CheckShard(catalog, holdings[i], shard));
  }
  return Status::Ok();
}

// The first element box that no region covers; none if the tensor is whole.
std::optional<Box> MissingBox(const Shape& shape, const std::vector<Region>& regions) {
  int64_t held = 0;
  for (const Region& region : regions) held += region.box.elems();
  if (held == ElemCount(shape)) return std::nullopt;
  std::vector<Box> boxes;
  for (const Region& region : regions) boxes.push_back(region.box);
  std::vector<Box> missing = Without(Box::Whole(shape), boxes);
  return *std::min_element(missing.begin(), missing.end());
}

}  // namespace

ExplicitShardMap::ExplicitShardMap(std::shared_ptr<const StateCatalog> catalog,
                                   std::vector<Holding> holdings)
    : catalog_(std::move(catalog)),
      holdings_(std::move(holdings)),
      parts_(catalog_->tensors().size()) {
  table_ = std::make_shared<const RankTable>(Ranks());
}

Result<std::shared_ptr<const ExplicitShardMap>> ExplicitShardMap::Make(
    std::shared_ptr<const StateCatalog> catalog, std::vector<Holding> holdings,
    bool allow_missing) {
  std::sort(holdings.begin(), holdings.end(),
            [](const Holding& a, const Holding& b) { return a.rank < b.rank; });
  DT_RETURN_IF_ERROR(CheckHoldings(*catalog, holdings));
  std::vector<std::vector<Region>> regions(catalog->tensors().size());
  for (size_t position = 0; position < holdings.size(); ++position) {
    Holding& holding = holdings[position];
    std::sort(holding.shards.begin(), holding.shards.end(), [](const Shard& a, const Shard& b) {
      return std::tie(a.tensor, a.box) < std::tie(b.tensor, b.box);
    });
    for (const Shard& shard : holding.shards) {
      const std::optional<Box> twice = AddHolder(shard.box, static_cast<int64_t>(position),
                                                 &regions[static_cast<size_t>(shard.tensor)]);
      if (twice) {
        return InvalidArgument("tensor {}: rank {} holds box {} in two shards",
                               catalog->NameOf(shard.tensor), holding.rank, twice->ToString());
      }
    }
  }
  auto map = std::shared_ptr<ExplicitShardMap>(
      new ExplicitShardMap(std::move(catalog), std::move(holdings)));
  for (size_t t = 0; t < regions.size(); ++t) {
    const auto tensor = static_cast<TensorId>(t);
    const std::optional<Box> missing = MissingBox(map->catalog_->shape_of(tensor), regions[t]);
    if (missing && !allow_missing) {
      return InvalidArgument("tensor {}: none of the ranks {} holds box {}",
                             map->catalog_->NameOf(tensor), FormatRanks(map->Ranks()),
                             missing->ToString());
    }
    std::sort(regions[t].begin(), regions[t].end(),
              [](const Region& a, const Region& b) { return a.box < b.box; });
    for (const Region& region : regions[t]) {
      map->parts_[t].push_back(
          {region.box, HolderSet::FromPositions(map->table_, region.positions)});
    }
  }
  DT_RETURN_IF_ERROR(CheckContents(*map, nullptr));
  return std::shared_ptr<const ExplicitShardMap>(std::move(map));
}

Result<std::shared_ptr<const ExplicitShardMap>> ExplicitShardMap::Copy(
    std::shared_ptr<const StateCatalog> catalog, const ShardMap& map,
    const std::vector<RankId>& ranks, bool allow_missing) {
  std::vector<Holding> holdings;
  for (const RankId rank : ranks.empty() ? map.Ranks() : ranks) {
    holdings.push_back({rank, map.BuffersOf(rank), map.ShardsOf(rank)});
  }
  return Make(std::move(catalog), std::move(holdings), allow_missing);
}

std::vector<RankId> ExplicitShardMap::Ranks() const {
  std::vector<RankId> ranks;
  for (const Holding& holding : holdings_) ranks.push_back(holding.rank);
  return ranks;
}

std::vector<Buffer> ExplicitShardMap::BuffersOf(RankId rank) const {
  const std::optional<int64_t> position = table_->PositionOf(rank);
  return position ? holdings_[static_cast<size_t>(*position)].buffers : std::vector<Buffer>{};
}

std::vector<Shard> ExplicitShardMap::ShardsOf(RankId rank) const {
  const std::optional<int64_t> position = table_->PositionOf(rank);
  return position ? holdings_[static_cast<size_t>(*position)].shards : std::vector<Shard>{};
}

void ExplicitShardMap::VisitHolders(TensorId tensor, const Box& box,
                                    const HolderVisitor& visit) const {
  for (const Part& part : parts_[static_cast<size_t>(tensor)]) {
    if (Overlaps(part.box, box)) visit(Intersect(part.box, box), part.holders);
  }
}

uint64_t ExplicitShardMap::Fingerprint() const {
  Hasher hasher;
  hasher.Add("explicit").Add(catalog_->Fingerprint()).Add(holdings_.size());
  const auto add = [&](const Coords& coords) {
    for (const int64_t value : coords.span()) hasher.Add(value);
  };
  for (const Holding& holding : holdings_) {
    hasher.Add(holding.rank).Add(holding.buffers.size());
    for (const Buffer& b : holding.buffers)
      hasher.Add(b.name).Add(b.kind).Add(b.dtype).Add(b.elems);
    hasher.Add(holding.shards.size());
    for (const Shard& s : holding.shards) {
      hasher.Add(s.tensor).Add(s.buffer).Add(s.offset);
      add(s.box.lo());
      add(s.box.hi());
      add(s.strides);
    }
  }
  return hasher.hash();
}

}  // namespace dynatrain::vps
