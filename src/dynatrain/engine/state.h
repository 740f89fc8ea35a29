// StateBuffers: the memory of one rank's state in one layout, a buffer for each vps::Buffer of its
// shard map.
#ifndef DYNATRAIN_ENGINE_STATE_H_
#define DYNATRAIN_ENGINE_STATE_H_

#include <memory>
#include <utility>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::engine {

// What fresh memory holds until it is written: zeros (as training needs in paddings), or in tests a
// NaN pattern in every element of every shard (0xFF bytes; padding still zero), so that an element
// which nobody wrote shows.
enum class Fill { kZero, kNan };

// One touched allocation, 4 KiB aligned, shared by the layouts that reuse it. Thread-compatible.
class Storage;

// Movable. Not thread-safe; different buffers may be used from different threads.
class StateBuffers {
 public:
  StateBuffers() = default;

  // Memory for all buffers of `rank`, every page touched. kResourceExhausted, with the bytes asked
  // for, if there is none.
  static Result<StateBuffers> Allocate(const vps::ShardMap& map, RankId rank, Fill fill);

  // As above, but buffer i with alias[i] >= 0 shares the storage of old.storage(alias[i]) instead
  // of new memory. Precondition: elems and dtype fit.
  static Result<StateBuffers> AllocateReusing(const vps::ShardMap& map, RankId rank, Fill fill,
                                              const StateBuffers& old,
                                              const std::vector<vps::BufferIndex>& alias);

  // As above, but new memory is address space alone: it takes memory range by range, with Take.
  static Result<StateBuffers> Reserve(const vps::ShardMap& map, RankId rank, Fill fill,
                                      const StateBuffers& old,
                                      const std::vector<vps::BufferIndex>& alias);

  // Makes whole pages of a reserved buffer take memory and fills them as asked for.
  // kResourceExhausted.
  Status Take(vps::BufferIndex index, ByteCount begin, ByteCount bytes);
  // As above, with the memory of `bytes` of `other`, which are given back there. What belongs to
  // shards is not specified until it is written.
  Status TakeOver(vps::BufferIndex index, ByteCount begin, Storage& other, ByteCount other_begin,
                  ByteCount bytes);

  int num_buffers() const;
  const vps::Buffer& buffer(vps::BufferIndex index) const;
  ByteSpan bytes(vps::BufferIndex index);
  ConstByteSpan bytes(vps::BufferIndex index) const;
  const std::shared_ptr<Storage>& storage(vps::BufferIndex index) const;
  ByteCount total_bytes() const;
  ByteCount fresh_bytes() const;  // allocated by this object rather than shared with `old`

 private:
  struct Entry {
    vps::Buffer buffer;
    std::shared_ptr<Storage> storage;
    bool fresh = true;
    // Of reserved memory: bytes [first, second), ascending, that may be in no shard.
    std::vector<std::pair<ByteCount, ByteCount>> paddings;
    std::vector<std::byte> pattern;  // Fill::kNan of reserved memory: what Take fills in
  };
  static Result<StateBuffers> Make(const vps::ShardMap& map, RankId rank, const StateBuffers& old,
                                   const std::vector<vps::BufferIndex>& alias, bool reserve);
  void FindPaddings(const vps::ShardMap& map, RankId rank);
  // Calls visit(region) for each shard in memory that is not shared with another layout.
  template <class Visit>
  void ForEachFreshRegion(const vps::ShardMap& map, RankId rank, const Visit& visit) const;
  std::vector<Entry> entries_;
};

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_STATE_H_
