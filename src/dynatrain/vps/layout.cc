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

constexpr int64_t kMaxWorld = int64_t{1} << 24;

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

int32_t DegreeOf(const Layout& layout, std::string_view axis) {
  if (axis == "tp") return layout.tp;
  if (axis == "dp") return layout.dp;
  DT_CHECK(axis == "pp");
  return layout.pp;
}

Status CheckDegrees(const Layout& l) {
  const std::array<std::pair<std::string_view, int32_t>, 3> degrees = {
      {{"tp", l.tp}, {"pp", l.pp}, {"dp", l.dp}}};
  for (const auto& [name, degree] : degrees) {
    if (degree < 1) return InvalidArgument("{}={}: a degree is at least 1", name, degree);
  }
  if (int64_t{l.tp} * l.pp > kMaxWorld || int64_t{l.tp} * l.pp * l.dp > kMaxWorld) {
    return InvalidArgument("tp={},pp={},dp={} needs more than {} ranks", l.tp, l.pp, l.dp,
                           kMaxWorld);
  }
  if (l.zero < 0 || l.zero > 1) {
    return InvalidArgument(
        "zero={}: 0 (replicate) and 1 (cut master and moments over dp) are available", l.zero);
  }
  std::vector<std::string_view> axes = AxesOf(l.order);
  std::sort(axes.begin(), axes.end());
  if (axes != std::vector<std::string_view>{"dp", "pp", "tp"}) {
    return InvalidArgument("order={}: it must name tp, dp and pp once each, as in order=tp-dp-pp",
                           l.order);
  }
  return Status::Ok();
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
  if (rule.cut == BufferRule::Cut::kBucketedElems && rule.bucket_elems < 1) {
    return InvalidArgument("zero_order=bucketed:{}: a bucket holds at least 1 element",
                           rule.bucket_elems);
  }
  return Status::Ok();
}

Status CheckRanks(const Layout& l, std::optional<int32_t> num_ranks) {
  const std::string degrees =
      fmt::format("tp={},pp={},dp={} needs {}", l.tp, l.pp, l.dp, l.world_size());
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
  int32_t stride = 1;
  for (const std::string_view inner : AxesOf(order)) {
    if (inner == axis) return stride;
    stride *= DegreeOf(*this, inner);
  }
  DT_CHECK_MSG(false, "no such axis");
}

int32_t Layout::PositionOf(const Role& role) const {
  DT_CHECK(role.tp >= 0 && role.tp < tp && role.dp >= 0 && role.dp < dp && role.pp >= 0 &&
           role.pp < pp);
  return role.tp * Stride("tp") + role.dp * Stride("dp") + role.pp * Stride("pp");
}

Role Layout::RoleAt(int32_t position) const {
  DT_CHECK(position >= 0 && position < world_size());
  return {.tp = position / Stride("tp") % tp,
          .dp = position / Stride("dp") % dp,
          .pp = position / Stride("pp") % pp};
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
  DT_CHECK(stage >= 0 && stage < pp);
  if (split.empty()) {
    const AxisRange range = SplitAxis(Split::Balanced(0), num_layers, pp, stage);
    return {static_cast<int32_t>(range.begin), static_cast<int32_t>(range.end)};
  }
  const auto first = split.begin();
  const int32_t begin = std::accumulate(first, first + stage, 0);
  return {begin, begin + split[static_cast<size_t>(stage)]};
}

int32_t Layout::StageOfLayer(int32_t layer, int32_t num_layers) const {
  DT_CHECK(layer >= 0 && layer < num_layers);
  int32_t stage = 0;
  while (LayersOf(stage, num_layers).end <= layer) ++stage;
  return stage;
}

Status Layout::Validate(int32_t num_layers, std::optional<int32_t> num_ranks) const {
  DT_RETURN_IF_ERROR(ValidateRanks(num_ranks));
  if (split.empty()) return Status::Ok();
  const int64_t sum = std::accumulate(split.begin(), split.end(), int64_t{0});
  if (sum != num_layers) {
    return InvalidArgument("split={} places {} layers, the model has {}", fmt::join(split, "+"),
                           sum, num_layers);
  }
  return Status::Ok();
}

Status Layout::ValidateRanks(std::optional<int32_t> num_ranks) const {
  DT_RETURN_IF_ERROR(CheckDegrees(*this));
  DT_RETURN_IF_ERROR(CheckBufferRule(buffer));
  DT_RETURN_IF_ERROR(CheckRanks(*this, num_ranks));
  if (split.empty()) return Status::Ok();
  if (static_cast<int64_t>(split.size()) != pp) {
    return InvalidArgument("split={} has {} stages, pp={} needs {}", fmt::join(split, "+"),
                           split.size(), pp, pp);
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
  hasher.Add(order);
  return hasher.hash();
}

}  // namespace dynatrain::vps
