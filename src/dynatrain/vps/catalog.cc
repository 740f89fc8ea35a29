#include "dynatrain/vps/catalog.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/ranges.h>

#include "dynatrain/base/hash.h"

namespace dynatrain::vps {

namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  ByteCount bytes;
};
constexpr std::array kDTypes = {
    DTypeInfo{DType::kF32, "fp32", 4},  DTypeInfo{DType::kBF16, "bf16", 2},
    DTypeInfo{DType::kF16, "fp16", 2},  DTypeInfo{DType::kF64, "fp64", 8},
    DTypeInfo{DType::kI64, "int64", 8}, DTypeInfo{DType::kI32, "int32", 4},
    DTypeInfo{DType::kU8, "uint8", 1}};

constexpr std::array<std::pair<Kind, std::string_view>, 5> kKinds = {
    {{Kind::kParam, "param"},
     {Kind::kGrad, "grad"},
     {Kind::kMaster, "master"},
     {Kind::kExpAvg, "exp_avg"},
     {Kind::kExpAvgSq, "exp_avg_sq"}}};

constexpr int64_t kMaxElems = int64_t{1} << 62;
constexpr int64_t kMaxBlock = int64_t{1} << 40;
constexpr int32_t kMaxLayers = 1 << 24;
constexpr ByteCount kMaxBytes = ByteCount{1} << 62;

const DTypeInfo& InfoOf(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info;
  }
  DT_CHECK_MSG(false, "unknown dtype");
}

Status CheckShape(const Parameter& p) {
  bool empty = false;
  for (const int64_t extent : p.shape.span()) {
    if (extent < 0) return InvalidArgument("an axis has the negative extent {}", extent);
    empty = empty || extent == 0;
  }
  if (empty) return Status::Ok();
  int64_t elems = 1;
  for (const int64_t extent : p.shape.span()) {
    if (elems > kMaxElems / extent) {
      return InvalidArgument("the shape {} has more than 2^62 elements",
                             fmt::join(p.shape.span(), " x "));
    }
    elems *= extent;
  }
  return Status::Ok();
}

// Of parts that are declared one by one.
Status CheckSum(const std::vector<int64_t>& sizes, std::string_view what, int axis,
                int64_t extent) {
  __extension__ __int128 sum = 0;
  for (const int64_t size : sizes) {
    if (size < 0) return InvalidArgument("{} has the negative size {}", what, size);
    sum += size;
  }
  if (sum == extent) return Status::Ok();
  return InvalidArgument(
      "{} sizes {} sum to {}, axis {} has {}", what, fmt::join(sizes, " + "),
      sum > kMaxElems ? "more than 2^62" : std::to_string(static_cast<int64_t>(sum)), axis, extent);
}

Status CheckSplit(const Parameter& p) {
  if (p.split.axis < 0) return Status::Ok();
  if (p.split.axis >= p.shape.dims()) {
    return InvalidArgument("split axis {} is outside its {} axes", p.split.axis, p.shape.dims());
  }
  if (p.split.block < 1) return InvalidArgument("split block {} is not positive", p.split.block);
  if (p.split.block > kMaxBlock)
    return InvalidArgument("split block {} is more than 2^40", p.split.block);
  const bool leading = p.split.rule == Split::Rule::kPadded || p.split.rule == Split::Rule::kRows;
  if (leading && p.split.axis != 0) {
    return InvalidArgument("a padded or row split is of axis 0, not {}", p.split.axis);
  }
  if (p.split.rule == Split::Rule::kGroups) {
    if (p.split.axis + 1 >= p.shape.dims()) {
      return InvalidArgument("a split in groups of axis {} needs an axis after it", p.split.axis);
    }
    if (p.split.shared < 0 || p.split.shared > p.shape[p.split.axis + 1]) {
      return InvalidArgument("groups share {} of {} entries of axis {}", p.split.shared,
                             p.shape[p.split.axis + 1], p.split.axis + 1);
    }
  }
  if (p.split.rule != Split::Rule::kExplicit) return Status::Ok();
  return CheckSum(p.split.sizes, "explicit split", p.split.axis, p.shape[p.split.axis]);
}

Status CheckExperts(const Parameter& p) {
  if (!p.experts) return Status::Ok();
  const Experts& e = *p.experts;
  if (e.axis >= p.shape.dims()) {
    return InvalidArgument("expert axis {} is outside its {} axes", e.axis, p.shape.dims());
  }
  if (e.axis < 0 && (e.index < 0 || e.index >= e.count)) {
    return InvalidArgument("expert {} of {}", e.index, e.count);
  }
  if (e.axis >= 0 && e.axis == p.split.axis) {
    return InvalidArgument("axis {} is cut both by expert and by the split", e.axis);
  }
  if (e.axis >= 0 && p.split.axis >= 0 && p.split.rule == Split::Rule::kGroups &&
      e.axis == p.split.axis + 1) {
    return InvalidArgument("axis {} is cut both by expert and by groups", e.axis);
  }
  if (e.axis >= 0 && p.split.axis >= 0 && p.split.rule == Split::Rule::kRows) {
    return InvalidArgument("a stack of experts has no row split");
  }
  return Status::Ok();
}

Status CheckStored(const Parameter& p) {
  if (p.row_axes < 0 || p.row_axes > std::max(p.shape.dims(), 1)) {
    return InvalidArgument("{} row axes of {}", p.row_axes, p.shape.dims());
  }
  if (p.split.rule == Split::Rule::kGroups && p.split.axis >= 0 && p.split.shared > 0 &&
      p.row_axes < p.split.axis + 2) {
    return InvalidArgument("groups that share entries of axis {} need {} row axes, not {}",
                           p.split.axis + 1, p.split.axis + 2, p.row_axes);
  }
  if (!p.stored) return Status::Ok();
  const StoredParts& stored = *p.stored;
  if (stored.axis < 0 || stored.axis >= p.shape.dims()) {
    return InvalidArgument("stored axis {} is outside its {} axes", stored.axis, p.shape.dims());
  }
  if (stored.axis >= p.row_axes) {
    return InvalidArgument("stored axis {} is none of its {} row axes", stored.axis, p.row_axes);
  }
  return CheckSum(stored.sizes, "stored parts", stored.axis, p.shape[stored.axis]);
}

Status CheckHomes(const Parameter& p) {
  if (p.homes.empty()) return InvalidArgument("no home in the pipeline");
  for (size_t i = 0; i < p.homes.size(); ++i) {
    const Home& home = p.homes[i];
    if (home.layer < 0) return InvalidArgument("home in layer {}; layers start at 0", home.layer);
    if (home.layer >= kMaxLayers)
      return InvalidArgument("home in layer {}; there are at most {}", home.layer, kMaxLayers);
    if (home.place != Home::Place::kLayer && home.layer != 0) {
      return InvalidArgument("a home that is no layer has layer number {}", home.layer);
    }
    if (std::find(p.homes.begin(), p.homes.begin() + static_cast<ptrdiff_t>(i), home) !=
        p.homes.begin() + static_cast<ptrdiff_t>(i)) {
      return InvalidArgument("the same home is listed twice");
    }
  }
  return Status::Ok();
}

Status CheckKinds(const Parameter& p) {
  if (p.kinds.empty()) return InvalidArgument("no kinds of state");
  for (size_t i = 1; i < p.kinds.size(); ++i) {
    if (p.kinds[i].kind == p.kinds[i - 1].kind) {
      return InvalidArgument("kind {} is listed twice", KindName(p.kinds[i].kind));
    }
  }
  return Status::Ok();
}

}  // namespace

ByteCount ElemBytes(DType dtype) { return InfoOf(dtype).bytes; }

std::string_view DTypeName(DType dtype) { return InfoOf(dtype).name; }

Result<DType> ParseDType(std::string_view name) {
  std::string known;
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
    known += known.empty() ? "" : ", ";
    known += info.name;
  }
  return InvalidArgument("unknown dtype '{}'; known are {}", name, known);
}

std::string_view KindName(Kind kind) { return kKinds[static_cast<size_t>(kind)].second; }

Result<Kind> ParseKind(std::string_view name) {
  for (const auto& [kind, kind_name] : kKinds) {
    if (kind_name == name) return kind;
  }
  return InvalidArgument("unknown kind '{}'; known are param, grad, master, exp_avg, exp_avg_sq",
                         name);
}

std::string_view SplitRuleName(Split::Rule rule) {
  switch (rule) {
    case Split::Rule::kBalanced:
      return "balanced";
    case Split::Rule::kChunk:
      return "chunk";
    case Split::Rule::kExplicit:
      return "explicit";
    case Split::Rule::kPadded:
      return "padded";
    case Split::Rule::kGroups:
      return "groups";
    case Split::Rule::kRows:
      return "rows";
  }
  DT_CHECK_MSG(false, "unknown split rule");
}

AxisRange SplitAxis(const Split& split, int64_t extent, int64_t parts, int64_t part) {
  DT_CHECK(parts > 0 && part >= 0 && part < parts);
  switch (split.rule) {
    case Split::Rule::kGroups:
    case Split::Rule::kRows:
    case Split::Rule::kBalanced: {
      const int64_t small = extent / parts;
      const int64_t larger_parts = extent % parts;
      const int64_t begin = part * small + std::min(part, larger_parts);
      return {begin, begin + small + (part < larger_parts ? 1 : 0)};
    }
    case Split::Rule::kPadded:
    case Split::Rule::kChunk: {
      const int64_t unit = split.rule == Split::Rule::kPadded ? split.block : 1;
      const int64_t chunk = (extent + unit * parts - 1) / (unit * parts) * unit;
      return {std::min(part * chunk, extent), std::min((part + 1) * chunk, extent)};
    }
    case Split::Rule::kExplicit: {
      DT_CHECK(static_cast<int64_t>(split.sizes.size()) == parts);
      int64_t begin = 0;
      for (int64_t i = 0; i < part; ++i) begin += split.sizes[static_cast<size_t>(i)];
      return {begin, begin + split.sizes[static_cast<size_t>(part)]};
    }
  }
  DT_CHECK_MSG(false, "unknown split rule");
}

std::vector<KindSpec> Fp32AdamKinds() {
  return {
      {Kind::kParam, DType::kF32}, {Kind::kExpAvg, DType::kF32}, {Kind::kExpAvgSq, DType::kF32}};
}

std::vector<KindSpec> Bf16AdamKinds() {
  return {{Kind::kParam, DType::kBF16},
          {Kind::kMaster, DType::kF32},
          {Kind::kExpAvg, DType::kF32},
          {Kind::kExpAvgSq, DType::kF32}};
}

Status StateCatalog::Add(Parameter parameter) {
  Parameter& p = parameter;
  if (p.name.empty()) return InvalidArgument("parameter {} has an empty name", parameters_.size());
  std::sort(p.kinds.begin(), p.kinds.end(),
            [](const KindSpec& a, const KindSpec& b) { return a.kind < b.kind; });
  const std::string context = fmt::format("parameter {}", p.name);
  if (FindParameter(p.name)) return InvalidArgument("is already in the catalog").Within(context);
  for (const auto& check :
       {CheckShape, CheckSplit, CheckExperts, CheckStored, CheckHomes, CheckKinds}) {
    if (Status status = check(p); !status.ok()) return status.Within(context);
  }
  __extension__ __int128 bytes = total_bytes_;
  for (const KindSpec& spec : p.kinds) {
    bytes += static_cast<__int128>(ElemCount(p.shape)) * ElemBytes(spec.dtype);
  }
  if (bytes > kMaxBytes)
    return InvalidArgument("the state would exceed 2^62 bytes").Within(context);
  total_bytes_ = static_cast<ByteCount>(bytes);
  const auto id = static_cast<ParameterId>(parameters_.size());
  first_tensor_.push_back(static_cast<TensorId>(tensors_.size()));
  for (const KindSpec& spec : p.kinds) {
    tensors_.push_back(
        {static_cast<TensorId>(tensors_.size()), id, spec.kind, spec.dtype, spec.content});
  }
  for (const Home& home : p.homes) {
    if (home.place == Home::Place::kLayer) num_layers_ = std::max(num_layers_, home.layer + 1);
  }
  by_name_.emplace(p.name, id);
  parameters_.push_back(std::move(parameter));
  return Status::Ok();
}

std::string StateCatalog::NameOf(TensorId id) const {
  return fmt::format("{}/{}", parameter_of(id).name, KindName(tensor(id).kind));
}

std::optional<TensorId> StateCatalog::Find(ParameterId parameter, Kind kind) const {
  const std::vector<KindSpec>& kinds = parameters_[static_cast<size_t>(parameter)].kinds;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i].kind == kind) {
      return first_tensor_[static_cast<size_t>(parameter)] + static_cast<TensorId>(i);
    }
  }
  return std::nullopt;
}

std::optional<ParameterId> StateCatalog::FindParameter(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

uint64_t StateCatalog::Fingerprint() const {
  Hasher hasher;
  hasher.Add(parameters_.size());
  for (const Parameter& p : parameters_) {
    hasher.Add(p.name).Add(p.shape.dims());
    for (const int64_t extent : p.shape.span()) hasher.Add(extent);
    hasher.Add(p.split.axis).Add(p.split.rule).Add(p.split.block).Add(p.split.sizes.size());
    for (const int64_t size : p.split.sizes) hasher.Add(size);
    hasher.Add(p.homes.size());
    for (const Home& home : p.homes) hasher.Add(home.place).Add(home.layer);
    hasher.Add(p.kinds.size());
    for (const KindSpec& spec : p.kinds) hasher.Add(spec.kind).Add(spec.dtype).Add(spec.content);
    hasher.Add(p.trainable).Add(p.weight_decay).Add(p.split.shared).Add(p.row_axes);
    hasher.Add(p.experts.has_value());
    if (p.experts) hasher.Add(p.experts->axis).Add(p.experts->index).Add(p.experts->count);
    hasher.Add(p.stored.has_value());
    if (p.stored) {
      hasher.Add(p.stored->axis).Add(p.stored->sizes.size());
      for (const int64_t size : p.stored->sizes) hasher.Add(size);
    }
  }
  return hasher.hash();
}

}  // namespace dynatrain::vps
