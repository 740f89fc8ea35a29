#include <algorithm>
#include <array>

#include "dynatrain/base/hash.h"
#include "dynatrain/vps/placement.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {

namespace {

constexpr std::array kAllKinds = {Kind::kParam, Kind::kGrad, Kind::kMaster, Kind::kExpAvg,
                                  Kind::kExpAvgSq};

Status CheckSplitOf(const Parameter& p, int32_t tp) {
  if (p.split.axis < 0) return Status::Ok();
  const int axis = p.split.axis;
  if (p.split.rule == Split::Rule::kExplicit && static_cast<int64_t>(p.split.sizes.size()) != tp) {
    return InvalidArgument("tensor {}: axis {} is declared in {} parts, tp={} needs {}", p.name,
                           axis, p.split.sizes.size(), tp, tp);
  }
  for (int32_t part = 1; part < tp; ++part) {
    const int64_t cut = SplitAxis(p.split, p.shape[axis], tp, part).begin;
    if (cut % p.split.block != 0 && cut != p.shape[axis]) {
      return InvalidArgument(
          "tensor {}: axis {} of {} in blocks of {} does not split over tp={}: the cut at {} falls "
          "inside a block",
          p.name, axis, p.shape[axis], p.split.block, tp, cut);
    }
  }
  return Status::Ok();
}

// Parameters whose kind param has one dtype share buffers, so their other kinds need one dtype each
// as well.
Status CheckDTypes(const StateCatalog& catalog) {
  struct Seen {
    bool trainable;
    std::optional<DType> param;
    KindSpec spec;
    ParameterId parameter;
  };
  std::vector<Seen> seen;
  for (size_t i = 0; i < catalog.parameters().size(); ++i) {
    const Parameter& p = catalog.parameters()[i];
    std::optional<DType> param;
    for (const KindSpec& spec : p.kinds) {
      if (spec.kind == Kind::kParam) param = spec.dtype;
    }
    for (const KindSpec& spec : p.kinds) {
      const auto same = std::find_if(seen.begin(), seen.end(), [&](const Seen& s) {
        return s.trainable == p.trainable && s.param == param && s.spec.kind == spec.kind;
      });
      if (same == seen.end()) {
        seen.push_back({p.trainable, param, spec, static_cast<ParameterId>(i)});
      } else if (same->spec.dtype != spec.dtype) {
        return InvalidArgument(
            "tensor {}/{} is {} and {}/{} is {}: one flat buffer holds both, so they need the same "
            "dtype",
            p.name, KindName(spec.kind), DTypeName(spec.dtype),
            catalog.parameters()[static_cast<size_t>(same->parameter)].name, KindName(spec.kind),
            DTypeName(same->spec.dtype));
      }
    }
  }
  return Status::Ok();
}

// The index of the buffer of a (run, kind) pair: buffers are ordered by run, then by kind.
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

// Appends the shards of one tensor whose tensor-parallel box `box` lies at `offset` of a bucket, as
// far as elements [slice_begin, slice_end) of the bucket hold it. Shard offsets count from
// slice_begin.
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

// One copy of a tensor-parallel part: its bucket starts `offset` elements before the part and is
// cut into slices of `slice` elements, slice i at position `base` + i * stride of dp.
struct Copy {
  int64_t base;
  int64_t offset;
  int64_t slice;
};

}  // namespace

Result<std::shared_ptr<const LayoutShardMap>> LayoutShardMap::Make(
    std::shared_ptr<const StateCatalog> catalog, const Layout& layout) {
  DT_RETURN_IF_ERROR(layout.Validate(catalog->num_layers(), std::nullopt));
  for (const Parameter& p : catalog->parameters()) DT_RETURN_IF_ERROR(CheckSplitOf(p, layout.tp));
  DT_RETURN_IF_ERROR(CheckDTypes(*catalog));
  return std::shared_ptr<const LayoutShardMap>(new LayoutShardMap(std::move(catalog), layout));
}

LayoutShardMap::LayoutShardMap(std::shared_ptr<const StateCatalog> catalog, const Layout& layout)
    : catalog_(std::move(catalog)),
      layout_(layout),
      table_(std::make_shared<const RankTable>(layout.Ranks())),
      placement_(std::make_shared<const Placement>(*catalog_, layout_)) {}

std::vector<Bucket> LayoutShardMap::BucketsOf(int32_t stage, int32_t tp) const {
  const std::vector<Placement::Item>& items = placement_->ItemsOf(stage);
  const Placement::Part& part = placement_->PartOf(stage, tp);
  std::vector<Bucket> buckets;
  for (size_t b = 0; b < part.runs.size(); ++b) {
    const Placement::Run& run = part.runs[b];
    Bucket bucket{.name = placement_->NameOf(stage, tp, static_cast<int32_t>(b)),
                  .entries = {},
                  .real_elems = run.real_elems,
                  .elems = run.elems,
                  .trainable = placement_->Trainable(items[static_cast<size_t>(run.begin)])};
    for (auto i = static_cast<size_t>(run.begin); i < static_cast<size_t>(run.end); ++i) {
      const ParameterId parameter = items[i].parameter;
      const Parameter& p = catalog_->parameters()[static_cast<size_t>(parameter)];
      bucket.entries.push_back({parameter, TensorParallelBox(p, layout_.tp, tp), part.offsets[i]});
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

bool LayoutShardMap::CutOverDp(Kind kind) const {
  return layout_.zero >= 1 &&
         (kind == Kind::kMaster || kind == Kind::kExpAvg || kind == Kind::kExpAvgSq);
}

std::optional<BufferIndex> LayoutShardMap::BufferOf(RankId rank, Kind kind, int32_t bucket) const {
  const std::optional<Role> role = layout_.RoleOfRank(rank);
  if (!role) return std::nullopt;
  const std::vector<Placement::Item>& items = placement_->ItemsOf(role->pp);
  const std::vector<Placement::Run>& runs = placement_->PartOf(role->pp, role->tp).runs;
  if (bucket < 0 || static_cast<size_t>(bucket) >= runs.size()) return std::nullopt;
  BufferIndex index = 0;
  for (int32_t b = 0; b <= bucket; ++b) {
    for (const Kind k : kAllKinds) {
      const bool exists = DTypeInRun(*catalog_, items, runs[static_cast<size_t>(b)], k).has_value();
      if (b == bucket && k == kind) return exists ? std::optional(index) : std::nullopt;
      if (exists) ++index;
    }
  }
  return std::nullopt;
}

std::vector<Buffer> LayoutShardMap::BuffersOf(RankId rank) const {
  const std::optional<Role> role = layout_.RoleOfRank(rank);
  if (!role) return {};
  const std::vector<Placement::Item>& items = placement_->ItemsOf(role->pp);
  const std::vector<Placement::Run>& runs = placement_->PartOf(role->pp, role->tp).runs;
  std::vector<Buffer> buffers;
  for (size_t b = 0; b < runs.size(); ++b) {
    const std::string name = placement_->NameOf(role->pp, role->tp, static_cast<int32_t>(b));
    for (const Kind kind : kAllKinds) {
      const std::optional<DType> dtype = DTypeInRun(*catalog_, items, runs[b], kind);
      if (!dtype) continue;
      const bool cut = CutOverDp(kind);
      buffers.push_back(
          {.name = cut ? fmt::format("{}/{}[{}/{}]", KindName(kind), name, role->dp, layout_.dp)
                       : fmt::format("{}/{}", KindName(kind), name),
           .kind = kind,
           .dtype = *dtype,
           .elems = cut ? runs[b].elems / layout_.dp : runs[b].elems});
    }
  }
  return buffers;
}

std::vector<Shard> LayoutShardMap::ShardsOf(RankId rank) const {
  const std::optional<Role> role = layout_.RoleOfRank(rank);
  if (!role) return {};
  const std::vector<Placement::Item>& items = placement_->ItemsOf(role->pp);
  const Placement::Part& part = placement_->PartOf(role->pp, role->tp);
  std::vector<Shard> shards;
  BufferIndex buffer = 0;
  for (const Placement::Run& run : part.runs) {
    for (const Kind kind : kAllKinds) {
      if (!DTypeInRun(*catalog_, items, run, kind)) continue;
      const int64_t slice = run.elems / layout_.dp;
      const int64_t begin = CutOverDp(kind) ? role->dp * slice : 0;
      const int64_t end = CutOverDp(kind) ? begin + slice : run.elems;
      for (auto i = static_cast<size_t>(run.begin); i < static_cast<size_t>(run.end); ++i) {
        const std::optional<TensorId> tensor = catalog_->Find(items[i].parameter, kind);
        if (!tensor) continue;
        const Box box = TensorParallelBox(catalog_->parameter_of(*tensor), layout_.tp, role->tp);
        AppendShards(*tensor, box, part.offsets[i], begin, end, buffer, &shards);
      }
      ++buffer;
    }
  }
  std::sort(shards.begin(), shards.end(), [](const Shard& a, const Shard& b) {
    return std::tie(a.tensor, a.box) < std::tie(b.tensor, b.box);
  });
  return shards;
}

void LayoutShardMap::VisitHolders(TensorId tensor, const Box& box,
                                  const HolderVisitor& visit) const {
  const Parameter& p = catalog_->parameter_of(tensor);
  if (p.split.axis < 0) {
    VisitPart(tensor, 0, layout_.tp, Intersect(box, Box::Whole(p.shape)), visit);
    return;
  }
  for (int32_t tp = 0; tp < layout_.tp; ++tp) {
    VisitPart(tensor, tp, tp + 1, Intersect(box, TensorParallelBox(p, layout_.tp, tp)), visit);
  }
}

void LayoutShardMap::VisitPart(TensorId tensor, int32_t tp_begin, int32_t tp_end, const Box& box,
                               const HolderVisitor& visit) const {
  if (box.empty()) return;
  const StateTensor& state = catalog_->tensor(tensor);
  const std::span<const Placement::Site> sites = placement_->SitesOf(state.parameter);
  const int64_t dp_stride = layout_.Stride("dp");
  const int64_t tp_stride = layout_.Stride("tp");
  const int64_t pp_stride = layout_.Stride("pp");
  std::vector<Copy> copies;
  for (const Placement::Site& site : sites) {
    for (int32_t tp = tp_begin; tp < tp_end; ++tp) {
      const Placement::Part& part = placement_->PartOf(site.stage, tp);
      const auto item = static_cast<size_t>(site.item);
      copies.push_back({site.stage * pp_stride + tp * tp_stride, part.offsets[item],
                        part.runs[static_cast<size_t>(part.run_of[item])].elems / layout_.dp});
    }
  }
  if (!CutOverDp(state.kind)) {
    std::vector<HolderSet::Product> products;
    for (const Copy& copy : copies) products.push_back({copy.base, {{dp_stride, layout_.dp}}});
    visit(box, HolderSet(table_, std::move(products)));
    return;
  }
  const Box part_box = TensorParallelBox(catalog_->parameter_of(tensor), layout_.tp, tp_begin);
  Coords last = box.hi();
  for (int axis = 0; axis < last.dims(); ++axis) --last[axis];
  const int64_t end = FlatIndex(part_box, last) + 1;
  // The largest flat ranges of the part in which every copy stays in one slice.
  for (int64_t at = FlatIndex(part_box, box.lo()); at < end;) {
    int64_t range_begin = 0;
    int64_t range_end = part_box.elems();
    std::vector<HolderSet::Product> products;
    for (const Copy& copy : copies) {
      const int64_t slice = (copy.offset + at) / copy.slice;
      range_begin = std::max(range_begin, slice * copy.slice - copy.offset);
      range_end = std::min(range_end, (slice + 1) * copy.slice - copy.offset);
      products.push_back({copy.base + slice * dp_stride, {}});
    }
    const HolderSet holders(table_, std::move(products));
    std::vector<Box> boxes;
    AppendFlatRangeBoxes(part_box, range_begin, range_end, &boxes);
    for (const Box& piece : boxes) {
      const Box asked = Intersect(piece, box);
      if (!asked.empty()) visit(asked, holders);
    }
    at = range_end;
  }
}

uint64_t LayoutShardMap::Fingerprint() const {
  return Hasher().Add("layout").Add(catalog_->Fingerprint()).Add(layout_.Fingerprint()).hash();
}

}  // namespace dynatrain::vps
