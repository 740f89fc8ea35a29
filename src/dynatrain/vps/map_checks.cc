#include "dynatrain/vps/map_checks.h"

#include <algorithm>
#include <string>

namespace dynatrain::vps {

namespace {

constexpr int64_t kMaxBufferElems = int64_t{1} << 58;

std::vector<RankId> AscendingRanks(const HolderSet& holders) {
  std::vector<RankId> ranks = holders.List();
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// What of the layout cuts the axis of a parameter.
std::string CutOf(const Parameter& p, const Layout& layout, int axis) {
  const bool own_grid = p.experts && layout.ExpertsHaveOwnGrid();
  if (own_grid && p.experts->axis == axis && layout.ep > 1) {
    return fmt::format("balanced over ep={}", layout.ep);
  }
  const int32_t degree = own_grid ? layout.etp : layout.tp;
  const bool rows = p.split.rule == Split::Rule::kRows;
  if (degree > 1 && p.split.axis >= 0 && (rows ? axis < p.row_axes : axis == p.split.axis)) {
    return fmt::format("{} over {}={}", SplitRuleName(p.split.rule), own_grid ? "etp" : "tp",
                       degree);
  }
  const int32_t slices = own_grid ? layout.edp() : layout.dp * layout.cp;
  return fmt::format("zero={} over {} data-parallel positions", layout.zero, slices);
}

Status CheckWhole(const StateCatalog& catalog, TensorId tensor, const Box& part, RankId rank,
                  const Layout* layout) {
  const Shape& shape = catalog.shape_of(tensor);
  int axis = 0;
  while (part.extent(axis) == shape[axis]) ++axis;
  return InvalidArgument(
      "tensor {}: it is declared whole and cannot be cut by element, but axis {} of {} is cut{}: "
      "rank {} has {}",
      catalog.NameOf(tensor), axis, shape[axis],
      layout == nullptr ? ""
                        : fmt::format(" ({})", CutOf(catalog.parameter_of(tensor), *layout, axis)),
      rank, part.ToString());
}

}  // namespace

Status CheckContents(const ShardMap& map, const Layout* layout) {
  const StateCatalog& catalog = map.catalog();
  Status status;
  for (const StateTensor& tensor : catalog.tensors()) {
    if (tensor.content == Content::kElements) continue;
    const Box whole = Box::Whole(catalog.shape_of(tensor.id));
    map.VisitHolders(tensor.id, whole, [&](const Box& part, const HolderSet& holders) {
      if (!status.ok()) return;
      if (tensor.content == Content::kWhole && part != whole) {
        status = CheckWhole(catalog, tensor.id, part, holders.At(0), layout);
      } else if (tensor.content == Content::kPartialSums && holders.size() > 1) {
        status = InvalidArgument(
            "tensor {}: its copies are declared partial sums, so the ranks {} that hold {} are no "
            "replicas; reduce them first",
            catalog.NameOf(tensor.id), FormatRanks(AscendingRanks(holders)), part.ToString());
      }
    });
    DT_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

Status CheckSizes(const StateCatalog& catalog, const Layout& layout) {
  __extension__ using Wide = __int128;
  const BufferRule& rule = layout.buffer;
  const Wide slices = Wide{layout.tp} * layout.cp * layout.dp;  // at least those of either grid
  const Wide end =
      std::max<Wide>(Wide{rule.end_alignment} * rule.end_alignment_per_dp * slices, 128 * slices);
  const Wide start = std::max<int64_t>(rule.start_alignment, 64);
  Wide total = 0;
  for (const Parameter& p : catalog.parameters()) {
    Wide row = 1;
    for (int axis = p.row_axes; axis < p.shape.dims(); ++axis) row *= p.shape[axis];
    Wide unit = rule.cut == BufferRule::Cut::kDim0 ? row * slices : end;
    if (p.split.axis >= 0 && p.split.rule == Split::Rule::kPadded) {
      unit += row * p.split.block * layout.tp;
    }
    total += Wide{ElemCount(p.shape)} + start + unit;
    if (total > kMaxBufferElems) {
      return InvalidArgument(
          "tensor {}: with its padding (start {}, end {}, block {}) the buffers could exceed 2^58 "
          "elements",
          p.name, rule.start_alignment, rule.end_alignment, p.split.block);
    }
  }
  return Status::Ok();
}

Status CheckDTypes(const StateCatalog& catalog, const Layout& layout) {
  struct Seen {
    bool trainable;
    bool experts;
    std::optional<DType> param;
    KindSpec spec;
    ParameterId parameter;
  };
  std::vector<Seen> seen;
  for (size_t i = 0; i < catalog.parameters().size(); ++i) {
    const Parameter& p = catalog.parameters()[i];
    const bool experts = p.experts.has_value() && layout.ExpertsHaveOwnGrid();
    std::optional<DType> param;
    for (const KindSpec& spec : p.kinds) {
      if (spec.kind == Kind::kParam) param = spec.dtype;
    }
    for (const KindSpec& spec : p.kinds) {
      const auto same = std::find_if(seen.begin(), seen.end(), [&](const Seen& s) {
        return s.trainable == p.trainable && s.experts == experts && s.param == param &&
               s.spec.kind == spec.kind;
      });
      if (same == seen.end()) {
        seen.push_back({p.trainable, experts, param, spec, static_cast<ParameterId>(i)});
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

}  // namespace dynatrain::vps
