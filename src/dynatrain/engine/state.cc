#include "dynatrain/engine/state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/storage.h"

namespace dynatrain::engine {
Result<StateBuffers> StateBuffers::Allocate(const vps::ShardMap& map, RankId rank, Fill fill) {
  const std::vector<vps::BufferIndex> fresh(map.BuffersOf(rank).size(), -1);
  return AllocateReusing(map, rank, fill, {}, fresh);
}

Result<StateBuffers> StateBuffers::AllocateReusing(const vps::ShardMap& map, RankId rank, Fill fill,
                                                   const StateBuffers& old,
                                                   const std::vector<vps::BufferIndex>& alias) {
  DT_ASSIGN_OR_RETURN(StateBuffers state, Make(map, rank, old, alias, /*reserve=*/false));
  if (fill == Fill::kZero) return state;
  state.ForEachFreshRegion(map, rank, [&state](const Region& region) {
    FillRegion(state.bytes(region.buffer), region, std::byte{0xFF});
  });
  return state;
}

Result<StateBuffers> StateBuffers::Reserve(const vps::ShardMap& map, RankId rank, Fill fill,
                                           const StateBuffers& old,
                                           const std::vector<vps::BufferIndex>& alias) {
  DT_ASSIGN_OR_RETURN(StateBuffers state, Make(map, rank, old, alias, /*reserve=*/true));
  state.FindPaddings(map, rank);
  if (fill == Fill::kZero) return state;
  state.ForEachFreshRegion(map, rank, [&state](const Region& region) {
    Entry& entry = state.entries_[static_cast<size_t>(region.buffer)];
    entry.pattern.resize(entry.storage->memory().size());
    FillRegion(entry.pattern, region, std::byte{0xFF});
  });
  return state;
}

Result<StateBuffers> StateBuffers::Make(const vps::ShardMap& map, RankId rank,
                                        const StateBuffers& old,
                                        const std::vector<vps::BufferIndex>& alias, bool reserve) {
  StateBuffers state;
  std::vector<vps::Buffer> buffers = map.BuffersOf(rank);
  DT_CHECK(alias.size() == buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    Entry entry{std::move(buffers[i]), nullptr, alias[i] < 0, {}, {}};
    if (entry.fresh) {
      const ByteCount bytes = entry.buffer.bytes();
      Result<std::shared_ptr<Storage>> storage =
          reserve ? Storage::Reserve(bytes) : Storage::Make(bytes);
      if (!storage.ok())
        return storage.status().Within(fmt::format("rank {}, buffer {}", rank, entry.buffer.name));
      entry.storage = *std::move(storage);
    } else {
      entry.storage = old.storage(alias[i]);
      DT_CHECK(static_cast<ByteCount>(entry.storage->memory().size()) >= entry.buffer.bytes());
    }
    state.entries_.push_back(std::move(entry));
  }
  return state;
}

// Shards that are not dense count as paddings: what lies between their rows may be.
void StateBuffers::FindPaddings(const vps::ShardMap& map, RankId rank) {
  std::vector<std::vector<std::pair<ByteCount, ByteCount>>> dense(entries_.size());
  ForEachFreshRegion(map, rank, [&dense](const Region& region) {
    if (!IsDense(region)) return;
    const ByteCount begin = region.offset * region.elem_bytes;
    dense[static_cast<size_t>(region.buffer)].emplace_back(begin, begin + region.bytes());
  });
  for (size_t i = 0; i < entries_.size(); ++i) {
    std::ranges::sort(dense[i]);
    ByteCount end = 0;
    for (const auto& [first, last] : dense[i]) {
      if (first > end) entries_[i].paddings.emplace_back(end, first);
      end = std::max(end, last);
    }
    const auto size = static_cast<ByteCount>(entries_[i].storage->memory().size());
    if (end < size) entries_[i].paddings.emplace_back(end, size);
  }
}

template <class Visit>
void StateBuffers::ForEachFreshRegion(const vps::ShardMap& map, RankId rank,
                                      const Visit& visit) const {
  for (const vps::Shard& shard : map.ShardsOf(rank)) {
    if (!entries_[static_cast<size_t>(shard.buffer)].fresh) continue;
    const auto elem_bytes = static_cast<int32_t>(vps::ElemBytes(buffer(shard.buffer).dtype));
    visit(Region{shard.buffer, shard.offset, shard.box.shape(), shard.strides, elem_bytes});
  }
}

Status StateBuffers::Take(vps::BufferIndex index, ByteCount begin, ByteCount bytes) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  DT_RETURN_IF_ERROR(entry.storage->Take(begin, bytes));
  if (entry.pattern.empty()) return Status::Ok();
  std::memcpy(entry.storage->memory().data() + begin, entry.pattern.data() + begin,
              static_cast<size_t>(bytes));
  return Status::Ok();
}

Status StateBuffers::TakeOver(vps::BufferIndex index, ByteCount begin, Storage& other,
                              ByteCount other_begin, ByteCount bytes) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  DT_RETURN_IF_ERROR(entry.storage->TakeOver(begin, other, other_begin, bytes));
  std::byte* memory = entry.storage->memory().data();
  if (!entry.pattern.empty()) {
    std::memcpy(memory + begin, entry.pattern.data() + begin, static_cast<size_t>(bytes));
    return Status::Ok();
  }
  const ByteCount end = begin + bytes;
  auto padding = std::ranges::upper_bound(entry.paddings, begin, {},
                                          [](const auto& range) { return range.second; });
  for (; padding != entry.paddings.end() && padding->first < end; ++padding) {
    const ByteCount first = std::max(padding->first, begin);
    std::memset(memory + first, 0, static_cast<size_t>(std::min(padding->second, end) - first));
  }
  return Status::Ok();
}

int StateBuffers::num_buffers() const { return static_cast<int>(entries_.size()); }

const vps::Buffer& StateBuffers::buffer(vps::BufferIndex index) const {
  return entries_[static_cast<size_t>(index)].buffer;
}

ByteSpan StateBuffers::bytes(vps::BufferIndex index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  return entry.storage->memory().first(static_cast<size_t>(entry.buffer.bytes()));
}

ConstByteSpan StateBuffers::bytes(vps::BufferIndex index) const {
  const Entry& entry = entries_[static_cast<size_t>(index)];
  return entry.storage->memory().first(static_cast<size_t>(entry.buffer.bytes()));
}

const std::shared_ptr<Storage>& StateBuffers::storage(vps::BufferIndex index) const {
  return entries_[static_cast<size_t>(index)].storage;
}

ByteCount StateBuffers::total_bytes() const {
  ByteCount total = 0;
  for (const Entry& entry : entries_) total += entry.buffer.bytes();
  return total;
}

ByteCount StateBuffers::fresh_bytes() const {
  ByteCount total = 0;
  for (const Entry& entry : entries_) total += entry.fresh ? entry.buffer.bytes() : 0;
  return total;
}

}  // namespace dynatrain::engine
