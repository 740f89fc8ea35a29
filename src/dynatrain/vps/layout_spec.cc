// Layout <-> SPEC text.
#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/ranges.h>

#include "dynatrain/base/text.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::vps {

namespace {

std::vector<std::string_view> SplitText(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

template <class T>
std::optional<T> ParseInteger(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.front() == '-')
    return std::nullopt;
  return value;
}

Result<int32_t> ParseDegree(std::string_view key, std::string_view value) {
  const std::optional<int32_t> degree = ParseInteger<int32_t>(value);
  if (!degree || *degree < 1 || *degree > kMaxWorldSize) {
    return InvalidArgument("{}={}: a degree is a whole number of 1 to {}", key, Shortened(value),
                           kMaxWorldSize);
  }
  return *degree;
}

// "0-3+6": ranges and single ranks joined by '+'; position order is the order given.
Result<std::vector<RankId>> ParseRanks(std::string_view value) {
  std::vector<RankId> ranks;
  for (const std::string_view part : SplitText(value, '+')) {
    const size_t dash = part.find('-');
    const auto first = ParseInteger<RankId>(part.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : ParseInteger<RankId>(part.substr(dash + 1));
    if (!first || !last || *last < *first) {
      return InvalidArgument(
          "ranks={}: '{}' is neither a rank nor an ascending range; right is ranks=0-3+6",
          Shortened(value), Shortened(part));
    }
    if (static_cast<size_t>(*last - *first) >= kMaxWorldSize - ranks.size()) {
      return InvalidArgument("ranks={}: more than {} ranks", Shortened(value), kMaxWorldSize);
    }
    if (*last >= kMaxWorldSize) {
      return InvalidArgument("ranks={}: rank {}; right are 0 to {}", Shortened(value), *last,
                             kMaxWorldSize - 1);
    }
    for (int64_t rank = *first; rank <= *last; ++rank) ranks.push_back(static_cast<RankId>(rank));
  }
  return ranks;
}

Result<std::vector<int32_t>> ParseSplit(std::string_view value) {
  std::vector<int32_t> split;
  for (const std::string_view part : SplitText(value, '+')) {
    const std::optional<int32_t> layers = ParseInteger<int32_t>(part);
    if (!layers) {
      return InvalidArgument(
          "split={}: '{}' is no number of layers; right is one per stage, as in split=4+3",
          Shortened(value), Shortened(part));
    }
    split.push_back(*layers);
  }
  return split;
}

constexpr std::string_view kBufferRuleForm =
    "(forward|reverse)-(contiguous|bucketed|bucketed:ELEMS|param|dim0)"
    "[-start:N][-end:N][-endx:N] or megatron[:ELEMS], ELEMS and N whole numbers of at least 1";

// "forward-bucketed:8-end:4" at its dashes; one right after a colon is a sign.
std::vector<std::string_view> SplitBufferRule(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '-' || (at > begin && text[at - 1] == ':')) continue;
    parts.push_back(text.substr(begin, at - begin));
    begin = at + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::optional<BufferRule::Cut> CutOf(std::string_view name) {
  if (name == "contiguous") return BufferRule::Cut::kContiguous;
  if (name == "bucketed") return BufferRule::Cut::kBucketed;
  if (name == "param") return BufferRule::Cut::kParam;
  if (name == "dim0") return BufferRule::Cut::kDim0;
  return std::nullopt;
}

Status ParseBufferPart(std::string_view part, size_t index, BufferRule* rule) {
  const size_t colon = part.find(':');
  const std::string_view name = part.substr(0, colon);
  const std::optional<int64_t> number = colon == std::string_view::npos
                                            ? std::nullopt
                                            : ParseInteger<int64_t>(part.substr(colon + 1));
  const bool bare = colon == std::string_view::npos;
  const bool positive = number && *number >= 1;
  if (index == 0 && bare && (name == "forward" || name == "reverse")) {
    rule->order = name == "forward" ? BufferRule::Order::kForward : BufferRule::Order::kReverse;
  } else if (index == 1 && bare && CutOf(name)) {
    rule->cut = *CutOf(name);
  } else if (index == 1 && positive && name == "bucketed") {
    rule->cut = BufferRule::Cut::kBucketedElems;
    rule->bucket_elems = *number;
  } else if (index >= 2 && positive && name == "start") {
    rule->start_alignment = *number;
  } else if (index >= 2 && positive && name == "end") {
    rule->end_alignment = *number;
  } else if (index >= 2 && positive && name == "endx") {
    rule->end_alignment_per_dp = *number;
  } else {
    return InvalidArgument("'{}' does not fit; right is {}", Shortened(part), kBufferRuleForm);
  }
  return Status::Ok();
}

Result<BufferRule> ParseBufferRule(std::string_view value) {
  BufferRule rule;
  if (value == "megatron" || value.starts_with("megatron:")) {
    rule.order = BufferRule::Order::kReverse;
    rule.cut = BufferRule::Cut::kMegatron;
    if (value == "megatron") return rule;
    const auto elems = ParseInteger<int64_t>(value.substr(value.find(':') + 1));
    if (!elems || *elems < 1) {
      return InvalidArgument("zero_order={}: right is {}", Shortened(value), kBufferRuleForm);
    }
    rule.bucket_elems = *elems;
    return rule;
  }
  const std::vector<std::string_view> parts = SplitBufferRule(value);
  if (parts.size() < 2)
    return InvalidArgument("zero_order={}: right is {}", Shortened(value), kBufferRuleForm);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (Status status = ParseBufferPart(parts[i], i, &rule); !status.ok()) {
      return status.Within(fmt::format("zero_order={}", Shortened(value)));
    }
  }
  return rule;
}

std::string FormatBufferRule(const BufferRule& rule) {
  if (rule.cut == BufferRule::Cut::kMegatron) {
    return rule.bucket_elems == 0 ? "megatron" : fmt::format("megatron:{}", rule.bucket_elems);
  }
  std::string text = rule.order == BufferRule::Order::kForward ? "forward-" : "reverse-";
  switch (rule.cut) {
    case BufferRule::Cut::kContiguous:
      text += "contiguous";
      break;
    case BufferRule::Cut::kBucketed:
      text += "bucketed";
      break;
    case BufferRule::Cut::kBucketedElems:
      text += fmt::format("bucketed:{}", rule.bucket_elems);
      break;
    case BufferRule::Cut::kParam:
      text += "param";
      break;
    case BufferRule::Cut::kDim0:
      text += "dim0";
      break;
    case BufferRule::Cut::kMegatron:
      DT_CHECK_MSG(false, "formatted above");
  }
  if (rule.start_alignment != 1) text += fmt::format("-start:{}", rule.start_alignment);
  if (rule.end_alignment != 1) text += fmt::format("-end:{}", rule.end_alignment);
  if (rule.end_alignment_per_dp != 1) text += fmt::format("-endx:{}", rule.end_alignment_per_dp);
  return text;
}

int32_t* DegreeField(std::string_view key, Layout* layout) {
  if (key == "tp") return &layout->tp;
  if (key == "pp") return &layout->pp;
  if (key == "dp") return &layout->dp;
  if (key == "cp") return &layout->cp;
  if (key == "ep") return &layout->ep;
  if (key == "etp") return &layout->etp;
  if (key == "vpp") return &layout->vpp;
  return nullptr;
}

Status ParseKey(std::string_view key, std::string_view value, Layout* layout) {
  if (int32_t* degree = DegreeField(key, layout); degree != nullptr) {
    DT_ASSIGN_OR_RETURN(*degree, ParseDegree(key, value));
  } else if (key == "zero") {
    const std::optional<int32_t> zero = ParseInteger<int32_t>(value);
    if (!zero || *zero > 3)
      return InvalidArgument("zero={}: right is 0, 1, 2 or 3", Shortened(value));
    layout->zero = *zero;
  } else if (key == "zero_order") {
    DT_ASSIGN_OR_RETURN(layout->buffer, ParseBufferRule(value));
  } else if (key == "split") {
    DT_ASSIGN_OR_RETURN(layout->split, ParseSplit(value));
  } else if (key == "ranks") {
    DT_ASSIGN_OR_RETURN(layout->ranks, ParseRanks(value));
  } else if (key == "order") {
    layout->order = value;
  } else if (key == "eorder") {
    layout->eorder = value;
  } else {
    return InvalidArgument(
        "unknown key '{}'; known are tp, pp, dp, zero, zero_order, split, ranks, order, cp, ep, "
        "etp, vpp, eorder",
        Shortened(key));
  }
  return Status::Ok();
}

Result<int32_t> DegreeOfDataParallel(const Layout& layout, std::optional<int32_t> num_ranks) {
  __extension__ const __int128 product = static_cast<__int128>(layout.tp) * layout.cp * layout.pp;
  if (product > kMaxWorldSize) {
    return InvalidArgument("tp={},cp={},pp={} need more than {} ranks", layout.tp, layout.cp,
                           layout.pp, kMaxWorldSize);
  }
  const auto others = static_cast<int64_t>(product);
  if (!layout.ranks.empty()) {
    const auto count = static_cast<int64_t>(layout.ranks.size());
    if (count % others != 0) {
      return InvalidArgument("ranks={} has {} ranks, tp={},{}pp={} needs a multiple of {}",
                             FormatRanks(layout.ranks), count, layout.tp,
                             layout.cp == 1 ? "" : fmt::format("cp={},", layout.cp), layout.pp,
                             others);
    }
    return static_cast<int32_t>(count / others);
  }
  return num_ranks ? std::max<int32_t>(static_cast<int32_t>(*num_ranks / others), 1) : 1;
}

}  // namespace

std::string FormatRanks(const std::vector<RankId>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += '+';
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

Result<Layout> ParseLayout(std::string_view spec, std::optional<int32_t> num_ranks) {
  Layout layout;
  std::set<std::string_view> seen;
  if (spec.empty()) return InvalidArgument("the layout is empty; right is tp=2,pp=2,dp=2");
  for (const std::string_view item : SplitText(spec, ',')) {
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size()) {
      return InvalidArgument("'{}' in layout '{}' is not KEY=VALUE; right is tp=2,pp=2,dp=2",
                             Shortened(item), Shortened(spec));
    }
    const std::string_view key = item.substr(0, equals);
    if (!seen.insert(key).second) {
      return InvalidArgument("layout '{}' has {} twice", Shortened(spec), Shortened(key));
    }
    DT_RETURN_IF_ERROR(ParseKey(key, item.substr(equals + 1), &layout));
  }
  if (!seen.contains("dp")) {
    DT_ASSIGN_OR_RETURN(layout.dp, DegreeOfDataParallel(layout, num_ranks));
  }
  DT_RETURN_IF_ERROR(layout.ValidateRanks(num_ranks));
  return layout;
}

std::string Layout::ToString() const {
  const Layout plain;
  std::string text;
  if (tp != 1) text += fmt::format("tp={},", tp);
  if (pp != 1) text += fmt::format("pp={},", pp);
  text += fmt::format("dp={}", dp);
  if (cp != 1) text += fmt::format(",cp={}", cp);
  if (ep != 1) text += fmt::format(",ep={}", ep);
  if (etp != 1) text += fmt::format(",etp={}", etp);
  if (vpp != 1) text += fmt::format(",vpp={}", vpp);
  if (zero != 0) text += fmt::format(",zero={}", zero);
  if (buffer != plain.buffer) text += fmt::format(",zero_order={}", FormatBufferRule(buffer));
  if (!split.empty()) text += fmt::format(",split={}", fmt::join(split, "+"));
  if (!ranks.empty()) text += fmt::format(",ranks={}", FormatRanks(ranks));
  if (order != plain.order) text += fmt::format(",order={}", order);
  if (!eorder.empty()) text += fmt::format(",eorder={}", eorder);
  return text;
}

}  // namespace dynatrain::vps
