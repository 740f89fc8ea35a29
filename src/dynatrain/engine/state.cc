#include "dynatrain/engine/state.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/storage.h"

namespace dynatrain::engine {
namespace {

constexpr ByteCount kPage = 4096;

}  // namespace

Result<std::shared_ptr<Storage>> Storage::Make(ByteCount bytes) {
  DT_CHECK(bytes >= 0);
  const ByteCount capacity = (bytes + kPage - 1) / kPage * kPage;
  if (capacity == 0) return std::shared_ptr<Storage>(new Storage({}));
  void* memory = mmap(nullptr, static_cast<size_t>(capacity), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted("no memory for a buffer of {} bytes: {}", bytes, std::strerror(errno));
  }
  return std::shared_ptr<Storage>(
      new Storage({static_cast<std::byte*>(memory), static_cast<size_t>(capacity)}));
}

Storage::~Storage() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

Result<StateBuffers> StateBuffers::Allocate(const vps::ShardMap& map, RankId rank, Fill fill) {
  const std::vector<vps::BufferIndex> fresh(map.BuffersOf(rank).size(), -1);
  return AllocateReusing(map, rank, fill, {}, fresh);
}

Result<StateBuffers> StateBuffers::AllocateReusing(const vps::ShardMap& map, RankId rank, Fill fill,
                                                   const StateBuffers& old,
                                                   const std::vector<vps::BufferIndex>& alias) {
  StateBuffers state;
  std::vector<vps::Buffer> buffers = map.BuffersOf(rank);
  DT_CHECK(alias.size() == buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    Entry entry{std::move(buffers[i]), nullptr, alias[i] < 0};
    if (entry.fresh) {
      Result<std::shared_ptr<Storage>> storage = Storage::Make(entry.buffer.bytes());
      if (!storage.ok()) {
        return storage.status().Within(fmt::format("rank {}, buffer {} of {} bytes in all", rank,
                                                   entry.buffer.name, entry.buffer.bytes()));
      }
      entry.storage = *std::move(storage);
    } else {
      entry.storage = old.storage(alias[i]);
      DT_CHECK(static_cast<ByteCount>(entry.storage->memory().size()) >= entry.buffer.bytes());
    }
    state.entries_.push_back(std::move(entry));
  }
  if (fill == Fill::kNan) {
    for (const vps::Shard& shard : map.ShardsOf(rank)) {
      if (!state.entries_[static_cast<size_t>(shard.buffer)].fresh) continue;
      FillRegion(state.bytes(shard.buffer),
                 {shard.buffer, shard.offset, shard.box.shape(), shard.strides,
                  static_cast<int32_t>(vps::ElemBytes(state.buffer(shard.buffer).dtype))},
                 std::byte{0xFF});
    }
  }
  return state;
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
