#include "dynatrain/planner/sources.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dynatrain/planner/source_table.h"

namespace dynatrain::planner {
namespace {

using vps::Box;
using vps::Coords;
using vps::HolderSet;

constexpr int kAllDigits = 64;

// The first axis of at least `stripes`, else the longest.
int CutAxis(const Box& box, int64_t stripes) {
  int best = 0;
  for (int axis = 0; axis < box.dims(); ++axis) {
    if (box.extent(axis) >= stripes) return axis;
    if (box.extent(axis) > box.extent(best)) best = axis;
  }
  return best;
}

}  // namespace

int DigitsOf(int64_t base) { return base == 2 ? 6 : base <= 4 ? 3 : 2; }

int64_t DigitSum(int64_t value, int64_t base, int digits) {
  if (base == 1) return 0;
  int64_t sum = 0;
  for (; value > 0 && digits > 0; value /= base, --digits) sum += value % base;
  return sum % base;
}

std::vector<Box> CutIntoStripes(const Box& box, int64_t stripes) {
  if (stripes == 1 || box.dims() == 0) return {box};
  const int axis = CutAxis(box, stripes);
  const int64_t parts = std::min(stripes, box.extent(axis));
  std::vector<Box> boxes;
  for (int64_t i = 0; i < parts; ++i) {
    Coords lo = box.lo();
    Coords hi = box.hi();
    lo[axis] += box.extent(axis) * i / parts;
    hi[axis] = box.lo()[axis] + box.extent(axis) * (i + 1) / parts;
    boxes.emplace_back(lo, hi);
  }
  return boxes;
}

std::span<const RankId> SourceChoice::Feed::Taker(int64_t taker) const {
  const auto t = static_cast<size_t>(taker);
  return std::span(taker_ranks).subspan(taker_begins[t], taker_begins[t + 1] - taker_begins[t]);
}

RankId SourceChoice::Feed::SourceOf(int64_t slot) const {
  const auto h = static_cast<int64_t>(sources.size());
  return sources[static_cast<size_t>((DigitSum(slot, h, DigitsOf(h)) + start) % h)];
}

RankId SourceChoice::Feed::EntryOf(int64_t taker, int64_t stripe) const {
  const std::span<const RankId> group = Taker(taker);
  const auto k = static_cast<int64_t>(group.size());
  return group[static_cast<size_t>((DigitSum(stripe, k, DigitsOf(k)) + start) % k)];
}

SourceChoice::SourceChoice(const HolderSet& holders, const HolderSet& needers,
                           const HolderSet* derivers, const Topology& topology, RankId rank,
                           const PlanOptions& options)
    : rank_(rank),
      stripe_bytes_(options.stripe_bytes),
      holds_(holders.Contains(rank)),
      needs_(needers.Contains(rank)) {
  derives_ = needs_ && !holds_ && derivers != nullptr && derivers->Contains(rank);
  if ((holds_ && needs_ && holders.size() == 1 && needers.size() == 1) || derives_) return;
  FillFeeds(holders, needers, derivers, topology);
  std::optional<int64_t> start;
  if (options.table) start = options.table->StartOf(holders, needers);
  for (Feed& feed : feeds_) Finish(options.relays, start.value_or(needers.At(0)), &feed);
  std::erase_if(feeds_, [](const Feed& feed) {
    return feed.num_takers() == 0 || (feed.self_source < 0 && feed.self_taker < 0);
  });
}

// Own node's feed, and the far one with a taker for each node, if this rank can be in it.
void SourceChoice::FillFeeds(const HolderSet& holders, const HolderSet& needers,
                             const HolderSet* derivers, const Topology& topology) {
  const int32_t own = topology.NodeOf(rank_);
  Feed near;
  Feed far;
  far.sources = holders.List();
  std::vector<int32_t> nodes;  // with holders
  for (const RankId rank : far.sources) {
    const int32_t node = topology.NodeOf(rank);
    if (nodes.empty() || nodes.back() != node) nodes.push_back(node);
    if (node == own) near.sources.push_back(rank);
  }
  std::sort(nodes.begin(), nodes.end());
  const bool in_far = holds_ || near.sources.empty();
  std::vector<std::pair<int32_t, RankId>> far_takers;  // by node
  for (const RankId rank : needers.List()) {
    const int32_t node = topology.NodeOf(rank);
    const bool near_taker = node == own && !near.sources.empty();
    if (near_taker ? holders.Contains(rank)
                   : !in_far || std::binary_search(nodes.begin(), nodes.end(), node)) {
      continue;
    }
    if (derivers != nullptr && derivers->Contains(rank)) continue;
    if (near_taker) near.taker_ranks.push_back(rank);
    if (!near_taker) far_takers.emplace_back(node, rank);
  }
  if (!near.taker_ranks.empty()) near.EndTaker();
  std::stable_sort(far_takers.begin(), far_takers.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < far_takers.size(); ++i) {
    far.taker_ranks.push_back(far_takers[i].second);
    const bool last = i + 1 == far_takers.size();
    if (last || far_takers[i + 1].first != far_takers[i].first) far.EndTaker();
  }
  feeds_.push_back(std::move(near));
  feeds_.push_back(std::move(far));
}

// Splits takers that need no relay into single ranks, and finds this rank's place.
void SourceChoice::Finish(bool relays, int64_t start, Feed* feed) {
  if (feed->sources.empty() || feed->taker_ranks.empty()) return;
  const auto h = static_cast<int64_t>(feed->sources.size());
  // A node of its own with a source for each needer has nothing to gain from a second hop.
  const bool is_near = feed == feeds_.data();
  if (!relays || (is_near && feed->taker_ranks.size() <= feed->sources.size())) {
    feed->taker_begins.resize(feed->taker_ranks.size() + 1);
    std::iota(feed->taker_begins.begin(), feed->taker_begins.end(), size_t{0});
  }
  feed->ways = h;
  for (int64_t t = 0; t < feed->num_takers(); ++t) {
    const std::span<const RankId> group = feed->Taker(t);
    feed->ways = std::max(feed->ways, static_cast<int64_t>(group.size()));
    if (std::find(group.begin(), group.end(), rank_) != group.end()) feed->self_taker = t;
  }
  feed->ways = std::min(feed->ways, kMaxStripes);
  feed->start = DigitSum(start, h, kAllDigits);
  const auto self = std::find(feed->sources.begin(), feed->sources.end(), rank_);
  if (self != feed->sources.end()) feed->self_source = self - feed->sources.begin();
}

void SourceChoice::Deal(const Piece& piece, ByteCount elem_bytes, Route* route) {
  const ByteCount bytes = piece.box.elems() * elem_bytes;
  if (holds_ && needs_) {
    route->keeps.push_back(piece);
    route->kept_bytes += bytes;
  }
  if (derives_) {
    route->derives.push_back(piece);
    route->derived_bytes += bytes;
  }
  for (Feed& feed : feeds_) DealFeed(piece, elem_bytes, &feed, route);
}

void SourceChoice::DealFeed(const Piece& piece, ByteCount elem_bytes, Feed* feed,
                            Route* route) const {
  const ByteCount bytes = piece.box.elems() * elem_bytes;
  const std::vector<Box> stripes =
      CutIntoStripes(piece.box, std::clamp<int64_t>(bytes / stripe_bytes_, 1, feed->ways));
  if (feed->self_source >= 0) Send(piece, stripes, elem_bytes, *feed, route);
  if (feed->self_taker >= 0) Take(piece, stripes, elem_bytes, *feed, route);
  const auto count = static_cast<int64_t>(stripes.size());
  feed->slots += count * feed->num_takers();
  feed->stripes += count;
}

void SourceChoice::Send(const Piece& piece, const std::vector<Box>& stripes, ByteCount elem_bytes,
                        const Feed& feed, Route* route) const {
  const auto h = static_cast<int64_t>(feed.sources.size());
  const auto count = static_cast<int64_t>(stripes.size());
  const int64_t end = feed.slots + count * feed.num_takers();
  // Of each h slots from a multiple of h on, exactly one is this rank's.
  for (int64_t block = feed.slots / h; block * h < end; ++block) {
    const int64_t shift =
        (feed.self_source + 2 * h - feed.start - DigitSum(block, h, DigitsOf(h) - 1)) % h;
    const int64_t slot = block * h + shift;
    if (slot < feed.slots || slot >= end) continue;
    const int64_t taker = (slot - feed.slots) / count;
    const int64_t stripe = (slot - feed.slots) % count;
    const Box& box = stripes[static_cast<size_t>(stripe)];
    route->sends.push_back({{piece.tensor, box}, feed.EntryOf(taker, feed.stripes + stripe)});
    route->sent_bytes += box.elems() * elem_bytes;
  }
}

void SourceChoice::Take(const Piece& piece, const std::vector<Box>& stripes, ByteCount elem_bytes,
                        const Feed& feed, Route* route) const {
  const std::span<const RankId> group = feed.Taker(feed.self_taker);
  const auto count = static_cast<int64_t>(stripes.size());
  for (int64_t s = 0; s < count; ++s) {
    const Piece stripe{piece.tensor, stripes[static_cast<size_t>(s)]};
    const ByteCount bytes = stripe.box.elems() * elem_bytes;
    const RankId entry = feed.EntryOf(feed.self_taker, feed.stripes + s);
    route->received_bytes += bytes;
    if (entry != rank_) {
      route->relay_receives.push_back({stripe, entry});
      continue;
    }
    route->receives.push_back({stripe, feed.SourceOf(feed.slots + feed.self_taker * count + s)});
    for (const RankId mate : group) {
      if (mate == rank_) continue;
      route->relay_sends.push_back({stripe, mate});
      route->sent_bytes += bytes;
    }
  }
}

}  // namespace dynatrain::planner
