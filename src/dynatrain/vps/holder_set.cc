// RankTable and HolderSet.
#include <algorithm>

#include "dynatrain/base/check.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {

namespace {

using Range = HolderSet::Range;
using Product = HolderSet::Product;

// Ranges of descending stride without the trivial ones; ranges that continue each other become one.
std::vector<Range> Canonical(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.count == 1; });
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.stride > b.stride; });
  std::vector<Range> merged;
  for (const Range& range : ranges) {
    if (!merged.empty() && merged.back().stride == range.stride * range.count) {
      merged.back() = {range.stride, merged.back().count * range.count};
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

// Whether every range steps over all that the smaller ones span, so that positions ascend and
// differ.
bool Nested(const std::vector<Range>& ranges) {
  int64_t span = 0;
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
    if (range->stride <= span) return false;
    span += range->stride * (range->count - 1);
  }
  return true;
}

// The ranges that list `starts` (ascending) from its first value; none if it is no product.
std::optional<std::vector<Range>> RangesOf(std::vector<int64_t> starts) {
  std::vector<Range> ranges;  // from the smallest stride up
  while (starts.size() > 1) {
    const int64_t stride = starts[1] - starts[0];
    size_t run = 2;
    while (run < starts.size() && starts[run] - starts[run - 1] == stride) ++run;
    if (starts.size() % run != 0) return std::nullopt;
    std::vector<int64_t> heads;
    for (size_t i = 0; i < starts.size(); ++i) {
      if (i % run == 0) {
        heads.push_back(starts[i]);
      } else if (starts[i] - starts[i - 1] != stride) {
        return std::nullopt;
      }
    }
    ranges.push_back({stride, static_cast<int64_t>(run)});
    starts = std::move(heads);
  }
  return ranges;
}

// Merges products of equal ranges into one where their starts are themselves a product.
std::vector<Product> Merged(std::vector<Product> products) {
  if (products.size() < 2) return products;
  std::vector<int64_t> starts;
  for (const Product& product : products) {
    if (product.ranges != products[0].ranges) return products;
    starts.push_back(product.start);
  }
  std::optional<std::vector<Range>> ranges = RangesOf(std::move(starts));
  if (!ranges) return products;
  ranges->insert(ranges->end(), products[0].ranges.begin(), products[0].ranges.end());
  std::vector<Range> merged = Canonical(*std::move(ranges));
  if (!Nested(merged)) return products;
  return {{products[0].start, std::move(merged)}};
}

}  // namespace

RankTable::RankTable(std::vector<RankId> ranks) : ranks_(std::move(ranks)) {
  const auto largest = std::max_element(ranks_.begin(), ranks_.end());
  if (largest != ranks_.end()) positions_.assign(static_cast<size_t>(*largest) + 1, -1);
  for (size_t position = 0; position < ranks_.size(); ++position) {
    const RankId rank = ranks_[position];
    DT_CHECK(rank >= 0 && positions_[static_cast<size_t>(rank)] < 0);
    positions_[static_cast<size_t>(rank)] = static_cast<int64_t>(position);
  }
}

std::optional<int64_t> RankTable::PositionOf(RankId rank) const {
  if (rank < 0 || static_cast<size_t>(rank) >= positions_.size()) return std::nullopt;
  const int64_t position = positions_[static_cast<size_t>(rank)];
  if (position < 0) return std::nullopt;
  return position;
}

int64_t HolderSet::Product::size() const {
  int64_t size = 1;
  for (const Range& range : ranges) size *= range.count;
  return size;
}

HolderSet::HolderSet(std::shared_ptr<const RankTable> table, std::vector<Product> products)
    : table_(std::move(table)) {
  for (Product& product : products) {
    product.ranges = Canonical(std::move(product.ranges));
    DT_CHECK(Nested(product.ranges));
  }
  std::sort(products.begin(), products.end());
  products_ = Merged(std::move(products));
  for (const Product& product : products_) size_ += product.size();
}

HolderSet HolderSet::FromPositions(std::shared_ptr<const RankTable> table,
                                   const std::vector<int64_t>& positions) {
  std::vector<Product> products;
  for (const int64_t position : positions) products.push_back({position, {}});
  return {std::move(table), std::move(products)};
}

RankId HolderSet::At(int64_t index) const {
  DT_CHECK(index >= 0 && index < size_);
  size_t i = 0;
  while (index >= products_[i].size()) index -= products_[i++].size();
  int64_t position = products_[i].start;
  const std::vector<Range>& ranges = products_[i].ranges;
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
    position += index % range->count * range->stride;
    index /= range->count;
  }
  return table_->RankAt(position);
}

std::vector<RankId> HolderSet::List() const {
  std::vector<int64_t> positions;
  positions.reserve(static_cast<size_t>(size_));
  for (const Product& product : products_) {
    const size_t first = positions.size();
    positions.push_back(product.start);
    for (auto range = product.ranges.rbegin(); range != product.ranges.rend(); ++range) {
      const size_t end = positions.size();  // of one copy of all smaller ranges
      for (int64_t i = 1; i < range->count; ++i) {
        for (size_t at = first; at < end; ++at) {
          positions.push_back(positions[at] + i * range->stride);
        }
      }
    }
  }
  std::vector<RankId> ranks(positions.size());
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = table_->RankAt(positions[i]);
  return ranks;
}

std::optional<int64_t> HolderSet::IndexOf(RankId rank) const {
  const std::optional<int64_t> position = table_->PositionOf(rank);
  if (!position) return std::nullopt;
  int64_t before = 0;
  for (const Product& product : products_) {
    int64_t rest = *position - product.start;
    int64_t index = 0;
    bool inside = rest >= 0;
    for (const Range& range : product.ranges) {
      if (!inside) break;
      const int64_t step = rest / range.stride;
      inside = step < range.count;
      index = index * range.count + step;
      rest -= step * range.stride;
    }
    if (inside && rest == 0) return before + index;
    before += product.size();
  }
  return std::nullopt;
}

}  // namespace dynatrain::vps
