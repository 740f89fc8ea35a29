#include "dynatrain/vps/layout.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/ranges.h>

#include "dynatrain/base/check.h"
#include "dynatrain/base/hash.h"
#include "dynatrain/vps/catalog.h"

namespace dynatrain::vps {

namespace {

// The degrees that consume ranks: "tp=2,pp=2,dp=2", with cp where it is not 1.
std::string Degrees(const Layout& l) {
  return fmt::format("tp={},pp={},{}dp={}", l.tp, l.pp,
                     l.cp == 1 ? "" : fmt::format("cp={},", l.cp), l.dp);
}

// The axis names of an order string, from the smallest stride to the largest.
std::vector<std::string_view> AxesOf(std::string_view order) {
  std::vector<std::string_view> axes;
  while (true) {
    const size_t dash = order.find('-');
    axes.push_back(order.substr(0, dash));
    if (dash == std::string_view::npos) return axes;
    order.remove_prefix(dash + 1);
  }
}

// The axes of the dense grid: without ep, with cp after tp where it is left out.
std::vector<std::string_view> DenseAxes(const Layout& layout) {
  std::vector<std::string_view> axes = AxesOf(layout.order);
  std::erase(axes, "ep");
  if (std::find(axes.begin(), axes.end(), "cp") == axes.end()) {
    const auto tp = std::find(axes.begin(), axes.end(), "tp");
    if (tp != axes.end()) axes.insert(tp + 1, "cp");
  }
  return axes;
}

std::vector<std::string_view> ExpertAxes(const Layout& layout) {
  if (!layout.eorder.empty()) return AxesOf(layout.eorder);
  std::vector<std::string_view> axes;
  for (const std::string_view axis : DenseAxes(layout)) {
    if (axis == "tp") {
      axes.insert(axes.end(), {"etp", "ep"});
    } else if (axis != "cp") {
      axes.push_back(axis == "dp" ? "edp" : axis);
    }
  }
  return axes;
}

int32_t DegreeOf(const Layout& layout, std::string_view axis) {
  if (axis == "tp") return layout.tp;
  if (axis == "cp") return layout.cp;
  if (axis == "dp") return layout.dp;
  if (axis == "etp") return layout.etp;
  if (axis == "ep") return layout.ep;
  if (axis == "edp") return layout.edp();
  DT_CHECK(axis == "pp");
  return layout.pp;
}

int32_t StrideIn(const Layout& layout, const std::vector<std::string_view>& axes,
                 std::string_view axis) {
  int32_t stride = 1;
  for (const std::string_view inner : axes) {
    if (inner == axis) return stride;
    stride *= DegreeOf(layout, inner);
  }
  DT_CHECK_MSG(false, "no such axis");
}

bool IsPermutation(std::vector<std::string_view> axes, std::vector<std::string_view> of) {
  std::sort(axes.begin(), axes.end());
  std::sort(of.begin(), of.end());
  return axes == of;
}

Status CheckOrders(const Layout& l) {
  if (!IsPermutation(DenseAxes(l), {"tp", "cp", "dp", "pp"})) {
    return InvalidArgument(
        "order={}: it must name tp, dp and pp once each, as in order=tp-dp-pp or "
        "order=tp-cp-ep-dp-pp",
        l.order);
  }
  if (!IsPermutation(ExpertAxes(l), {"etp", "ep", "edp", "pp"})) {
    return InvalidArgument(
        "eorder={}: it must name etp, ep, edp and pp once each, as in "
        "eorder=etp-ep-edp-pp",
        l.eorder);
  }
  if (l.pp > 1 && l.Stride("pp") != l.ExpertStride("pp")) {
    return InvalidArgument(
        "order={},eorder={}: stages must be the same in both grids, but lie {} and {} positions "
        "apart; right is pp last in both",
        fmt::join(DenseAxes(l), "-"), fmt::join(ExpertAxes(l), "-"), l.Stride("pp"),
        l.ExpertStride("pp"));
  }
  return Status::Ok();
}

Status CheckDegrees(const Layout& l) {
  const std::array<std::pair<std::string_view, int32_t>, 7> degrees = {{{"tp", l.tp},
                                                                        {"pp", l.pp},
                                                                        {"dp", l.dp},
                                                                        {"cp", l.cp},
                                                                        {"ep", l.ep},
                                                                        {"etp", l.etp},
                                                                        {"vpp", l.vpp}}};
  int64_t world = 1;
  for (const auto& [name, degree] : degrees) {
    if (degree < 1) return InvalidArgument("{}={}: a degree is at least 1", name, degree);
    if (degree > kMaxWorldSize) {
      return InvalidArgument("{}={}: a degree is at most {}", name, degree, kMaxWorldSize);
    }
    if (name != "ep" && name != "etp" && name != "vpp" && world <= kMaxWorldSize) world *= degree;
  }
  if (world > kMaxWorldSize)
    return InvalidArgument("{} needs more than {} ranks", Degrees(l), kMaxWorldSize);
  if (int64_t{l.pp} * l.vpp > kMaxWorldSize) {
    return InvalidArgument("pp={},vpp={}: more than {} chunks", l.pp, l.vpp, kMaxWorldSize);
  }
  const int64_t positions = world / l.pp;
  const int64_t experts = int64_t{l.etp} * l.ep;
  if (positions % experts != 0) {
    return InvalidArgument(
        "ep={},etp={}: {} positions per stage (tp={},cp={},dp={}) are not a "
        "multiple of ep * etp = {}",
        l.ep, l.etp, positions, l.tp, l.cp, l.dp, experts);
  }
  if (l.zero < 0 || l.zero > 3) {
    return InvalidArgument(
        "zero={}: right is 0 (replicate), 1 (cut master and moments over dp), 2 (gradients too) or "
        "3 (parameters too)",
        l.zero);
  }
  return CheckOrders(l);
}

Status CheckBufferRule(const BufferRule& rule) {
  if (rule.start_alignment < 1 || rule.end_alignment < 1 || rule.end_alignment_per_dp < 1) {
    return InvalidArgument("zero_order: alignments are at least 1 element");
  }
  constexpr int64_t kMaxAlignment = int64_t{1} << 32;
  if (std::max({rule.start_alignment, rule.end_alignment, rule.end_alignment_per_dp}) >
      kMaxAlignment) {
    return InvalidArgument("zero_order: alignments are at most 2^32 elements");
  }
  const bool aligned =
      rule.start_alignment != 1 || rule.end_alignment != 1 || rule.end_alignment_per_dp != 1;
  if (rule.cut == BufferRule::Cut::kDim0 && aligned) {
    return InvalidArgument("zero_order: dim0 cuts whole rows and takes no alignment");
  }
  if (rule.cut == BufferRule::Cut::kMegatron &&
      (aligned || rule.order != BufferRule::Order::kReverse || rule.bucket_elems < 0)) {
    return InvalidArgument("zero_order: megatron fixes order and alignment");
  }
  if (rule.cut == BufferRule::Cut::kBucketedElems && rule.bucket_elems < 1) {
    return InvalidArgument("zero_order=bucketed:{}: a bucket holds at least 1 element",
                           rule.bucket_elems);
  }
  return Status::Ok();
}

// The unit that bucket ends are padded to, whatever n is.
Status CheckPadding(const Layout& l) {
  constexpr int64_t kMaxUnit = int64_t{1} << 48;
  const BufferRule& rule = l.buffer;
  const int64_t positions = int64_t{l.tp} * l.cp * l.dp;
  __extension__ using Wide = __int128;
  const Wide unit = Wide{rule.end_alignment} * rule.end_alignment_per_dp * positions;
  if (unit <= kMaxUnit) return Status::Ok();
  return InvalidArgument(
      "zero_order: end:{} and endx:{} over {} positions pad to more than 2^48 elements",
      rule.end_alignment, rule.end_alignment_per_dp, positions);
}

Status CheckRanks(const Layout& l, std::optional<int32_t> num_ranks) {
  const std::string degrees = fmt::format("{} needs {}", Degrees(l), l.world_size());
  if (l.ranks.empty()) {
    if (num_ranks && l.world_size() > *num_ranks) {
      return InvalidArgument("{} ranks, the job has {}", degrees, *num_ranks);
    }
    return Status::Ok();
  }
  if (static_cast<int64_t>(l.ranks.size()) != l.world_size()) {
    return InvalidArgument("ranks={} has {} ranks, {}", FormatRanks(l.ranks), l.ranks.size(),
                           degrees);
  }
  std::vector<RankId> sorted = l.ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0) return InvalidArgument("ranks: {} is no rank", sorted.front());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end())
    return InvalidArgument("ranks={} names rank {} twice", FormatRanks(l.ranks), *twice);
  if (num_ranks && sorted.back() >= *num_ranks) {
    return InvalidArgument("ranks={} names rank {}, the job has ranks 0 to {}",
                           FormatRanks(l.ranks), sorted.back(), *num_ranks - 1);
  }
  return Status::Ok();
}

}  // namespace

int32_t Layout::Stride(std::string_view axis) const {
  return StrideIn(*this, DenseAxes(*this), axis);
}

int32_t Layout::ExpertStride(std::string_view axis) const {
  if (EdpIsTheStage()) return axis == "pp" ? Stride("pp") : 1;
  return StrideIn(*this, ExpertAxes(*this), axis);
}

int32_t Layout::PositionOf(const Role& role) const {
  DT_CHECK(role.tp >= 0 && role.tp < tp && role.cp >= 0 && role.cp < cp && role.dp >= 0 &&
           role.dp < dp && role.pp >= 0 && role.pp < pp);
  return role.tp * Stride("tp") + role.cp * Stride("cp") + role.dp * Stride("dp") +
         role.pp * Stride("pp");
}

Role Layout::RoleAt(int32_t position) const {
  DT_CHECK(position >= 0 && position < world_size());
  return {.tp = position / Stride("tp") % tp,
          .dp = position / Stride("dp") % dp,
          .pp = position / Stride("pp") % pp,
          .cp = position / Stride("cp") % cp};
}

ExpertRole Layout::ExpertRoleAt(int32_t position) const {
  DT_CHECK(position >= 0 && position < world_size());
  if (EdpIsTheStage()) {
    const int32_t stride = Stride("pp");
    return {.etp = 0,
            .ep = 0,
            .edp = position / (stride * pp) * stride + position % stride,
            .pp = position / stride % pp};
  }
  return {.etp = position / ExpertStride("etp") % etp,
          .ep = position / ExpertStride("ep") % ep,
          .edp = position / ExpertStride("edp") % edp(),
          .pp = position / ExpertStride("pp") % pp};
}

RankId Layout::RankAt(int32_t position) const {
  DT_CHECK(position >= 0 && position < world_size());
  return ranks.empty() ? position : ranks[static_cast<size_t>(position)];
}

std::optional<int32_t> Layout::PositionOfRank(RankId rank) const {
  if (ranks.empty()) {
    if (rank < 0 || rank >= world_size()) return std::nullopt;
    return rank;
  }
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<int32_t>(found - ranks.begin());
}

std::optional<Role> Layout::RoleOfRank(RankId rank) const {
  const std::optional<int32_t> position = PositionOfRank(rank);
  if (!position) return std::nullopt;
  return RoleAt(*position);
}

std::vector<RankId> Layout::Ranks() const {
  if (!ranks.empty()) return ranks;
  std::vector<RankId> all(static_cast<size_t>(world_size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Layout::LayerRange Layout::LayersOf(int32_t stage, int32_t num_layers) const {
  DT_CHECK(vpp == 1);
  return LayersOfChunk(stage, num_layers);
}

Layout::LayerRange Layout::LayersOfChunk(int32_t chunk, int32_t num_layers) const {
  DT_CHECK(chunk >= 0 && chunk < num_chunks());
  if (split.empty()) {
    const AxisRange range = SplitAxis(Split::Balanced(0), num_layers, num_chunks(), chunk);
    return {static_cast<int32_t>(range.begin), static_cast<int32_t>(range.end)};
  }
  const auto first = split.begin();
  const int32_t begin = std::accumulate(first, first + chunk, 0);
  return {begin, begin + split[static_cast<size_t>(chunk)]};
}

int32_t Layout::ChunkOfLayer(int32_t layer, int32_t num_layers) const {
  DT_CHECK(layer >= 0 && layer < num_layers);
  if (split.empty()) {
    const int32_t small = num_layers / num_chunks();
    const int32_t larger_chunks = num_layers % num_chunks();
    const int32_t in_larger = larger_chunks * (small + 1);
    return layer < in_larger ? layer / (small + 1) : larger_chunks + (layer - in_larger) / small;
  }
  int32_t chunk = 0;
  for (int32_t end = split[0]; end <= layer; end += split[static_cast<size_t>(chunk)]) ++chunk;
  return chunk;
}

int32_t Layout::StageOfLayer(int32_t layer, int32_t num_layers) const {
  return ChunkOfLayer(layer, num_layers) % pp;
}

Status Layout::Validate(int32_t num_layers, std::optional<int32_t> num_ranks) const {
  DT_RETURN_IF_ERROR(ValidateRanks(num_ranks));
  if (split.empty()) return Status::Ok();
  const int64_t sum = std::accumulate(split.begin(), split.end(), int64_t{0});
  if (sum != num_layers) {
    std::string nowhere;
    if (sum == num_layers - 1) {
      nowhere = fmt::format(": layer {} would be on no stage", sum);
    } else if (sum < num_layers) {
      nowhere = fmt::format(": layers {} to {} would be on no stage", sum, num_layers - 1);
    }
    return InvalidArgument("split={} places {} layers, the model has {}{}", fmt::join(split, "+"),
                           sum, num_layers, nowhere);
  }
  return Status::Ok();
}

Status Layout::ValidateRanks(std::optional<int32_t> num_ranks) const {
  DT_RETURN_IF_ERROR(CheckDegrees(*this));
  DT_RETURN_IF_ERROR(CheckBufferRule(buffer));
  DT_RETURN_IF_ERROR(CheckPadding(*this));
  DT_RETURN_IF_ERROR(CheckRanks(*this, num_ranks));
  if (split.empty()) return Status::Ok();
  if (static_cast<int64_t>(split.size()) != num_chunks()) {
    const std::string degrees =
        vpp == 1 ? fmt::format("pp={}", pp) : fmt::format("pp={},vpp={}", pp, vpp);
    return InvalidArgument("split={} has {} {}, {} needs {}", fmt::join(split, "+"), split.size(),
                           vpp == 1 ? "stages" : "chunks", degrees, num_chunks());
  }
  for (const int32_t layers : split) {
    if (layers < 0)
      return InvalidArgument("split={}: a stage cannot have {} layers", fmt::join(split, "+"),
                             layers);
  }
  return Status::Ok();
}

uint64_t Layout::Fingerprint() const {
  Hasher hasher;
  hasher.Add(tp).Add(pp).Add(dp).Add(zero);
  hasher.Add(buffer.order).Add(buffer.cut).Add(buffer.bucket_elems).Add(buffer.start_alignment);
  hasher.Add(buffer.end_alignment).Add(buffer.end_alignment_per_dp);
  hasher.Add(split.size());
  for (const int32_t layers : split) hasher.Add(layers);
  hasher.Add(ranks.size());
  for (const RankId rank : ranks) hasher.Add(rank);
  hasher.Add(order).Add(cp).Add(ep).Add(etp).Add(vpp).Add(eorder);
  return hasher.hash();
}

}  // namespace dynatrain::vps
