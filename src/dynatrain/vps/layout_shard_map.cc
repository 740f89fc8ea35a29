#include <algorithm>
#include <array>

#include "dynatrain/base/hash.h"
#include "dynatrain/vps/map_checks.h"
#include "dynatrain/vps/placement.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {

namespace {

constexpr std::array kAllKinds = {Kind::kParam, Kind::kGrad, Kind::kMaster, Kind::kExpAvg,
                                  Kind::kExpAvgSq};

// The dtype of a kind in a run; none if no parameter of the run has the kind.
std::optional<DType> DTypeInRun(const StateCatalog& catalog,
                                const std::vector<Placement::Item>& items,
                                const Placement::Run& run, Kind kind) {
  for (int32_t i = run.begin; i < run.end; ++i) {
    const std::optional<TensorId> tensor =
        catalog.Find(items[static_cast<size_t>(i)].parameter, kind);
    if (tensor) return catalog.tensor(*tensor).dtype;
  }
  return std::nullopt;
}

// Appends the shards of a piece that lies at `offset` of a bucket, as far as elements [slice_begin,
// slice_end) of the bucket hold it. Shard offsets count from slice_begin.
void AppendShards(TensorId tensor, const Box& box, int64_t offset, int64_t slice_begin,
                  int64_t slice_end, BufferIndex buffer, std::vector<Shard>* shards) {
  const int64_t begin = std::max(slice_begin - offset, int64_t{0});
  const int64_t end = std::min(slice_end - offset, box.elems());
  if (begin >= end) return;
  const Coords strides = RowMajorStrides(box.shape());
  std::vector<Box> boxes;
  AppendFlatRangeBoxes(box, begin, end, &boxes);
  for (const Box& piece : boxes) {
    shards->push_back(
        {tensor, piece, buffer, offset + FlatIndex(box, piece.lo()) - slice_begin, strides});
  }
}

// Elements before the piece `box` in the local tensor of `part`.
int64_t OffsetOfPiece(const Parameter& p, const PartGrid& parts, int32_t part, const Box& box) {
  const bool one_piece =
      !p.stored && p.split.rule != Split::Rule::kGroups && p.split.rule != Split::Rule::kRows;
  if (one_piece) return 0;
  std::vector<Piece> pieces;
  AppendPieces(p, parts, part, &pieces);
  size_t index = 0;
  int64_t offset = 0;
  while (index < pieces.size() && pieces[index].box != box) offset += pieces[index++].box.elems();
  DT_CHECK(index < pieces.size());
  return offset;
}

// One copy of a piece: it starts `offset` elements inside a bucket that is cut into slices of
// `slice` elements; slice 0 of the bucket is at position `base`.
struct Copy {
  int64_t base;
  int64_t offset;
  int64_t slice;
};

// Where a rank is in both grids.
std::array<Grid::Place, 2> PlacesAt(const Placement& placement, int32_t position) {
  return {placement.grid(Placement::kDense).PlaceAt(position),
          placement.grid(Placement::kExperts).PlaceAt(position)};
}

}  // namespace

Result<std::shared_ptr<const LayoutShardMap>> LayoutShardMap::Make(
    std::shared_ptr<const StateCatalog> catalog, const Layout& layout) {
  DT_RETURN_IF_ERROR(layout.Validate(catalog->num_layers(), std::nullopt));
  for (const Parameter& p : catalog->parameters()) {
    const bool experts = p.experts && layout.ExpertsHaveOwnGrid();
    DT_RETURN_IF_ERROR(experts ? CheckSplitFits(p, {layout.etp, layout.ep}, "etp")
                               : CheckSplitFits(p, {layout.tp, 1}, "tp"));
  }
  DT_RETURN_IF_ERROR(CheckDTypes(*catalog, layout));
  DT_RETURN_IF_ERROR(CheckSizes(*catalog, layout));
  std::shared_ptr<const LayoutShardMap> map(new LayoutShardMap(std::move(catalog), layout));
  DT_RETURN_IF_ERROR(CheckContents(*map, &layout));
  return map;
}

LayoutShardMap::LayoutShardMap(std::shared_ptr<const StateCatalog> catalog, const Layout& layout)
    : catalog_(std::move(catalog)),
      layout_(layout),
      table_(std::make_shared<const RankTable>(layout.Ranks())),
      placement_(std::make_shared<const Placement>(*catalog_, layout_)) {}

std::vector<Bucket> LayoutShardMap::BucketsOf(int32_t stage, int32_t tp) const {
  std::vector<Bucket> buckets;
  AppendBuckets(false, stage, tp, &buckets);
  return buckets;
}

std::vector<Bucket> LayoutShardMap::BucketsOfRank(RankId rank) const {
  std::vector<Bucket> buckets;
  const std::optional<int32_t> position = layout_.PositionOfRank(rank);
  if (!position) return buckets;
  const auto [dense, experts] = PlacesAt(*placement_, *position);
  AppendBuckets(false, dense.stage, dense.part, &buckets);
  AppendBuckets(true, experts.stage, experts.part, &buckets);
  return buckets;
}

void LayoutShardMap::AppendBuckets(bool experts, int32_t stage, int32_t part,
                                   std::vector<Bucket>* buckets) const {
  const Placement::GridIndex grid = experts ? Placement::kExperts : Placement::kDense;
  const PartGrid& parts = placement_->grid(grid).parts();
  const std::vector<Placement::Item>& items = placement_->ItemsOf(grid, stage, part);
  const Placement::Part& placed = placement_->PartOf(grid, stage, part);
  for (size_t b = 0; b < placed.runs.size(); ++b) {
    const Placement::Run& run = placed.runs[b];
    Bucket bucket{.name = placement_->NameOf(grid, stage, part, static_cast<int32_t>(b)),
                  .entries = {},
                  .real_elems = run.real_elems,
                  .elems = run.elems,
                  .trainable = placement_->Trainable(items[static_cast<size_t>(run.begin)]),
                  .experts = experts};
    for (auto i = static_cast<size_t>(run.begin); i < static_cast<size_t>(run.end); ++i) {
      const ParameterId id = items[i].parameter;
      const Parameter& p = catalog_->parameters()[static_cast<size_t>(id)];
      std::vector<Piece> pieces;
      AppendPieces(p, parts, part, &pieces);
      int64_t offset = placed.offsets[i];
      const Coords zero = Coords::Filled(p.shape.dims(), 0);
      if (pieces.empty()) bucket.entries.push_back({id, Box(zero, zero), offset});
      for (const Piece& piece : pieces) {
        bucket.entries.push_back({id, piece.box, offset});
        offset += piece.box.elems();
      }
    }
    buckets->push_back(std::move(bucket));
  }
}

bool LayoutShardMap::CutOverDp(Kind kind) const {
  switch (kind) {
    case Kind::kParam:
      return layout_.zero >= 3;
    case Kind::kGrad:
      return layout_.zero >= 2;
    case Kind::kMaster:
    case Kind::kExpAvg:
    case Kind::kExpAvgSq:
      return layout_.zero >= 1;
  }
  DT_CHECK_MSG(false, "unknown kind");
}

std::optional<BufferIndex> LayoutShardMap::BufferOf(RankId rank, Kind kind, int32_t bucket) const {
  std::optional<BufferIndex> found;
  VisitBuffers(rank, [&](const BufferPlace& place) {
    if (place.bucket == bucket && place.kind == kind) found = place.buffer;
  });
  return found;
}

std::vector<Buffer> LayoutShardMap::BuffersOf(RankId rank) const {
  std::vector<Buffer> buffers;
  VisitBuffers(rank, [&](const BufferPlace& place) {
    const auto grid = static_cast<Placement::GridIndex>(place.grid);
    const std::string name = placement_->NameOf(grid, place.stage, place.part, place.run);
    const int32_t slices = placement_->grid(grid).slices();
    const int64_t elems = placement_->PartOf(grid, place.stage, place.part)
                              .runs[static_cast<size_t>(place.run)]
                              .elems;
    const bool cut = CutOverDp(place.kind);
    buffers.push_back(
        {.name = cut ? fmt::format("{}/{}[{}/{}]", KindName(place.kind), name, place.slice, slices)
                     : fmt::format("{}/{}", KindName(place.kind), name),
         .kind = place.kind,
         .dtype = place.dtype,
         .elems = cut ? elems / slices : elems});
  });
  return buffers;
}

void LayoutShardMap::VisitBuffers(RankId rank,
                                  const std::function<void(const BufferPlace&)>& visit) const {
  const std::optional<int32_t> position = layout_.PositionOfRank(rank);
  if (!position) return;
  const std::array<Grid::Place, 2> places = PlacesAt(*placement_, *position);
  BufferPlace at{};
  for (const Placement::GridIndex grid : {Placement::kDense, Placement::kExperts}) {
    const auto& [stage, part, slice] = places[grid];
    const std::vector<Placement::Item>& items = placement_->ItemsOf(grid, stage, part);
    const std::vector<Placement::Run>& runs = placement_->PartOf(grid, stage, part).runs;
    for (size_t run = 0; run < runs.size(); ++run, ++at.bucket) {
      for (const Kind kind : kAllKinds) {
        const std::optional<DType> dtype = DTypeInRun(*catalog_, items, runs[run], kind);
        if (!dtype) continue;
        visit({.grid = grid,
               .stage = stage,
               .part = part,
               .slice = slice,
               .run = static_cast<int32_t>(run),
               .bucket = at.bucket,
               .kind = kind,
               .dtype = *dtype,
               .buffer = at.buffer++});
      }
    }
  }
}

std::vector<Shard> LayoutShardMap::ShardsOf(RankId rank) const {
  std::vector<Shard> shards;
  VisitBuffers(rank, [&](const BufferPlace& place) {
    const auto grid = static_cast<Placement::GridIndex>(place.grid);
    const PartGrid& parts = placement_->grid(grid).parts();
    const Placement::Part& placed = placement_->PartOf(grid, place.stage, place.part);
    const std::vector<Placement::Item>& items = placement_->ItemsOf(grid, place.stage, place.part);
    const Placement::Run& run = placed.runs[static_cast<size_t>(place.run)];
    const int64_t slice = run.elems / placement_->grid(grid).slices();
    const int64_t begin = CutOverDp(place.kind) ? place.slice * slice : 0;
    const int64_t end = CutOverDp(place.kind) ? begin + slice : run.elems;
    std::vector<Piece> pieces;
    for (auto i = static_cast<size_t>(run.begin); i < static_cast<size_t>(run.end); ++i) {
      const std::optional<TensorId> tensor = catalog_->Find(items[i].parameter, place.kind);
      if (!tensor) continue;
      pieces.clear();
      AppendPieces(catalog_->parameter_of(*tensor), parts, place.part, &pieces);
      int64_t offset = placed.offsets[i];
      for (const Piece& piece : pieces) {
        AppendShards(*tensor, piece.box, offset, begin, end, place.buffer, &shards);
        offset += piece.box.elems();
      }
    }
  });
  std::sort(shards.begin(), shards.end(), [](const Shard& a, const Shard& b) {
    return std::tie(a.tensor, a.box) < std::tie(b.tensor, b.box);
  });
  return shards;
}

void LayoutShardMap::VisitHolders(TensorId tensor, const Box& box,
                                  const HolderVisitor& visit) const {
  const ParameterId id = catalog_->tensor(tensor).parameter;
  const Parameter& p = catalog_->parameter_of(tensor);
  const PartGrid& parts = placement_->grid(placement_->GridOf(id)).parts();
  const Box asked = Intersect(box, Box::Whole(p.shape));
  if (asked.empty()) return;
  const AxisRange groups = ExpertGroupsOf(p, parts, asked);
  const int32_t positions = p.split.axis < 0 ? 1 : parts.split_degree;
  std::vector<Piece> pieces;
  for (auto group = static_cast<int32_t>(groups.begin); group < groups.end; ++group) {
    for (int32_t t = 0; t < positions; ++t) {
      const int32_t part = group * parts.split_degree + t;
      pieces.clear();
      AppendPieces(p, parts, part, &pieces);
      for (const Piece& piece : pieces) {
        if (piece.part_begin != part || !Overlaps(piece.box, asked)) continue;
        VisitPiece(tensor, piece, Intersect(piece.box, asked), visit);
      }
    }
  }
}

void LayoutShardMap::VisitPiece(TensorId tensor, const Piece& piece, const Box& asked,
                                const HolderVisitor& visit) const {
  const StateTensor& state = catalog_->tensor(tensor);
  const Parameter& p = catalog_->parameter_of(tensor);
  const Placement::GridIndex grid_index = placement_->GridOf(state.parameter);
  const Grid& grid = placement_->grid(grid_index);
  const int32_t group = piece.part_begin / grid.parts().split_degree;
  std::vector<Copy> copies;
  for (const Placement::Site& site : placement_->SitesOf(state.parameter)) {
    if (site.expert_group != group) continue;
    for (int32_t part = piece.part_begin; part < piece.part_end; ++part) {
      const Placement::Part& placed = placement_->PartOf(grid_index, site.stage, part);
      const auto item = static_cast<size_t>(site.item);
      const Placement::Run& run = placed.runs[static_cast<size_t>(placed.run_of[item])];
      copies.push_back({grid.BaseOf(site.stage, part),
                        placed.offsets[item] + OffsetOfPiece(p, grid.parts(), part, piece.box),
                        run.elems / grid.slices()});
    }
  }
  if (!CutOverDp(state.kind)) {
    std::vector<HolderSet::Product> products;
    for (const Copy& copy : copies) products.push_back({copy.base, grid.slice_ranges()});
    visit(asked, HolderSet(table_, std::move(products)));
    return;
  }
  Coords last = asked.hi();
  for (int axis = 0; axis < last.dims(); ++axis) --last[axis];
  const int64_t end = FlatIndex(piece.box, last) + 1;
  // The largest flat ranges of the piece in which every copy stays in one slice.
  for (int64_t at = FlatIndex(piece.box, asked.lo()); at < end;) {
    int64_t range_begin = 0;
    int64_t range_end = piece.box.elems();
    std::vector<HolderSet::Product> products;
    for (const Copy& copy : copies) {
      const int64_t slice = (copy.offset + at) / copy.slice;
      range_begin = std::max(range_begin, slice * copy.slice - copy.offset);
      range_end = std::min(range_end, (slice + 1) * copy.slice - copy.offset);
      products.push_back({copy.base + grid.OffsetOfSlice(slice), {}});
    }
    const HolderSet holders(table_, std::move(products));
    std::vector<Box> boxes;
    AppendFlatRangeBoxes(piece.box, range_begin, range_end, &boxes);
    for (const Box& part : boxes) {
      const Box common = Intersect(part, asked);
      if (!common.empty()) visit(common, holders);
    }
    at = range_end;
  }
}

uint64_t LayoutShardMap::Fingerprint() const {
  return Hasher().Add("layout").Add(catalog_->Fingerprint()).Add(layout_.Fingerprint()).hash();
}

}  // namespace dynatrain::vps
