// Memory of streaming switches, granule by granule: what is given back stays away, and what becomes
// free becomes new memory without being taken twice.
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "dynatrain/engine/memory_plan.h"
#include "dynatrain/engine/storage.h"
#include "dynatrain/engine/testing_switch.h"

namespace dynatrain::engine {
namespace {

using testing::RandomSwitch;
using vps::ShardMap;
using vps::testing::MapOf;

constexpr ByteCount kPage = 4096;
constexpr ByteCount kHuge = ByteCount{2} << 20;

// What is given back out of a huge page, or not taken yet, does not come back when the system makes
// huge pages, which it may do at any time.
TEST(Storage, PartsOfHugePagesDoNotComeBack) {
  const auto collapse = [](const Storage& storage) {
    constexpr int kMadvCollapse = 25;  // of Linux 6.1; an older one refuses it
    madvise(storage.memory().data(), storage.memory().size(), kMadvCollapse);
    return storage.ResidentBytes();
  };
  const auto whole = *Storage::Make(2 * kHuge);
  EXPECT_EQ(collapse(*whole), 2 * kHuge);
  whole->GiveBack(kHuge / 2, kHuge / 4);
  EXPECT_EQ(collapse(*whole), 2 * kHuge - kHuge / 4);
  whole->GiveBack(kHuge, kHuge);
  EXPECT_EQ(collapse(*whole), kHuge - kHuge / 4);
  const auto reserved = *Storage::Reserve(2 * kHuge);
  ASSERT_TRUE(reserved->Take(0, kPage).ok());
  EXPECT_EQ(collapse(*reserved), kPage);
}

void Fill(const Storage& storage, ByteCount begin, ByteCount bytes, int value) {
  std::memset(storage.memory().data() + begin, value, static_cast<size_t>(bytes));
}

bool Holds(const Storage& storage, ByteCount begin, ByteCount bytes, int value) {
  const ByteSpan range =
      storage.memory().subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
  return std::ranges::all_of(range, [&](std::byte b) { return std::to_integer<int>(b) == value; });
}

// Of pieces that are longer than a huge page, shorter, and across the borders of what was taken and
// given back before, which the system maps apart. (Memory that was given back takes memory again if
// it is looked at, so that comes last.)
TEST(Storage, MemoryThatIsTakenOverIsTakenOnce) {
  const auto old = *Storage::Make(5 * kHuge);
  Fill(*old, 0, 5 * kHuge, 1);
  const auto fresh = *Storage::Reserve(6 * kHuge);
  const auto take_over = [&](ByteCount to, ByteCount from, ByteCount bytes) {
    ASSERT_TRUE(fresh->TakeOver(to, *old, from, bytes).ok());
    Fill(*fresh, to, bytes, 2);
  };
  take_over(kHuge, 2 * kHuge, kHuge);
  EXPECT_EQ(fresh->ResidentBytes(), kHuge);
  EXPECT_EQ(old->ResidentBytes(), 4 * kHuge);
  take_over(2 * kHuge, 3 * kHuge, 2 * kHuge);
  EXPECT_EQ(fresh->ResidentBytes(), 3 * kHuge);
  EXPECT_EQ(old->ResidentBytes(), 2 * kHuge);
  take_over(5 * kHuge, kPage, 3 * kPage);
  EXPECT_EQ(fresh->ResidentBytes(), 3 * kHuge + 3 * kPage);
  EXPECT_EQ(old->ResidentBytes(), 2 * kHuge - 3 * kPage);
  // Of old memory that is partly gone already: what is missing is taken anew.
  old->GiveBack(kHuge, kHuge / 4);
  take_over(0, kHuge / 2, kHuge);
  EXPECT_EQ(fresh->ResidentBytes(), 4 * kHuge + 3 * kPage);
  EXPECT_EQ(old->ResidentBytes(), kHuge - 3 * kPage);

  EXPECT_TRUE(Holds(*old, 0, kPage, 1));
  EXPECT_TRUE(Holds(*old, kPage, 3 * kPage, 0));
  EXPECT_TRUE(Holds(*old, 4 * kPage, kHuge / 2 - 4 * kPage, 1));
  EXPECT_TRUE(Holds(*old, kHuge / 2, kHuge, 0));
  EXPECT_TRUE(Holds(*old, 3 * kHuge / 2, kHuge / 2, 1));
  EXPECT_TRUE(Holds(*old, 2 * kHuge, 3 * kHuge, 0));
  EXPECT_TRUE(Holds(*fresh, 0, 4 * kHuge, 2));
  EXPECT_TRUE(Holds(*fresh, 5 * kHuge, 3 * kPage, 2));
  EXPECT_TRUE(Holds(*fresh, 4 * kHuge, kHuge, 0));

  // And back again, over what was left behind.
  ASSERT_TRUE(old->TakeOver(3 * kHuge, *fresh, 2 * kHuge, 2 * kHuge).ok());
  Fill(*old, 3 * kHuge, 2 * kHuge, 3);
  EXPECT_TRUE(Holds(*fresh, 0, 2 * kHuge, 2));
  EXPECT_TRUE(Holds(*fresh, 2 * kHuge, 2 * kHuge, 0));
}

// More pieces than a process may have mappings: the rest is taken anew, and nothing fails.
TEST(Storage, MorePiecesThanMappings) {
  constexpr int64_t kPieces = 70'000;
  const auto old = *Storage::Make(kPieces * kPage);
  const auto fresh = *Storage::Reserve(kPieces * kPage);
  for (int64_t i = 0; i < kPieces; ++i)
    ASSERT_TRUE(fresh->TakeOver(i * kPage, *old, (kPieces - 1 - i) * kPage, kPage).ok()) << i;
  EXPECT_EQ(old->ResidentBytes(), 0);
  EXPECT_EQ(fresh->ResidentBytes(), kPieces * kPage);
  Fill(*fresh, 0, kPieces * kPage, 5);
  EXPECT_TRUE(Storage::Make(kHuge).ok());
}

// Calls visit(place of the element in its buffer).
template <class Visit>
void ForEachElement(int64_t offset, const vps::Coords& extent, const vps::Coords& strides,
                    const Visit& visit) {
  for (int64_t flat = 0; flat < vps::ElemCount(extent); ++flat) {
    int64_t at = offset;
    int64_t left = flat;
    for (int axis = extent.dims() - 1; axis >= 0; --axis) {
      at += left % extent[axis] * strides[axis];
      left /= extent[axis];
    }
    visit(at);
  }
}

// Paddings between and behind shards are zero whatever the memory held before, as training needs.
TEST(StateBuffers, PaddingsOfMemoryThatIsTakenOverAreZero) {
  int64_t padded = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const RandomSwitch c = testing::DrawSwitch(seed, &random);
    for (const RankId rank : c.to->Ranks()) {
      const std::vector<vps::BufferIndex> fresh(c.to->BuffersOf(rank).size(), -1);
      StateBuffers state = *StateBuffers::Reserve(*c.to, rank, Fill::kZero, {}, fresh);
      std::vector<std::vector<bool>> in_shard;
      for (vps::BufferIndex b = 0; b < state.num_buffers(); ++b) {
        const auto bytes = static_cast<ByteCount>(state.storage(b)->memory().size());
        in_shard.emplace_back(static_cast<size_t>(state.bytes(b).size()));
        const auto old = *Storage::Make(bytes);
        Fill(*old, 0, bytes, 0xAA);
        // The first page alone and the rest together.
        ASSERT_TRUE(state.TakeOver(b, 0, *old, 0, std::min(bytes, kPage)).ok());
        const ByteCount first = std::min(bytes, kPage);
        ASSERT_TRUE(state.TakeOver(b, first, *old, first, bytes - first).ok());
      }
      for (const vps::Shard& shard : c.to->ShardsOf(rank)) {
        const auto elem = static_cast<size_t>(vps::ElemBytes(state.buffer(shard.buffer).dtype));
        std::vector<bool>& known = in_shard[static_cast<size_t>(shard.buffer)];
        ForEachElement(shard.offset, shard.box.shape(), shard.strides, [&](int64_t at) {
          for (size_t i = 0; i < elem; ++i) known[static_cast<size_t>(at) * elem + i] = true;
        });
      }
      for (vps::BufferIndex b = 0; b < state.num_buffers(); ++b) {
        const auto& known = in_shard[static_cast<size_t>(b)];
        for (size_t i = 0; i < known.size(); ++i) {
          if (known[i]) continue;
          ++padded;
          ASSERT_EQ(std::to_integer<int>(state.bytes(b)[i]), 0) << "buffer " << b << " byte " << i;
        }
      }
    }
  }
  EXPECT_GT(padded, 0);
}

// Granule by granule, of one rank: when old memory is read, and when new memory is written.
class Granules {
 public:
  explicit Granules(const Program& program) : program_(program) {
    for (int32_t p = 0; const Phase& phase : program.phases) {
      for (const Message& send : phase.sends) {
        for (const Fragment& f : send.fragments) {
          if (!send.relayed) ForEachGranuleOf(f.region, [&](auto at) { last_read_[at] = p; });
        }
      }
      for (const LocalCopy& copy : phase.copies) {
        ForEachGranuleOf(copy.from, [&](auto at) { last_read_[at] = p; });
        ForEachGranuleOf(copy.to, [&](auto at) { first_write_.emplace(at, p); });
      }
      for (const Message& receive : phase.receives) {
        for (const Fragment& f : receive.fragments)
          ForEachGranuleOf(f.region, [&](auto at) { first_write_.emplace(at, p); });
      }
      ++p;
    }
  }

  // Each granule of old memory goes once, after it was read, and each of new memory comes once,
  // before it is written. The number that become new memory as they are.
  int64_t Check() {
    std::set<At> gone, here;
    int64_t moved = 0;
    for (int32_t p = 0; const Phase& phase : program_.phases) {
      for (const MemoryRange& range : phase.drops) Leave(range, p - 1, &gone);
      for (const MemoryMove& move : phase.moves) {
        EXPECT_EQ(move.from.bytes, move.to.bytes);
        EXPECT_EQ(move.from.bytes % kPage, 0);
        EXPECT_EQ(move.from.begin % kPage, 0);
        EXPECT_EQ(move.to.begin % kPage, 0);
        Leave(move.from, p - 1, &gone);
        Come(move.to, p, &here);
        moved += move.to.bytes / kPage;
      }
      for (const MemoryRange& range : phase.takes) Come(range, p, &here);
      for (const MemoryRange& range : phase.releases) Leave(range, p, &gone);
      ++p;
    }
    std::set<At> all_old, all_new;
    for (size_t b = 0; b < program_.old_buffers.size(); ++b) {
      if (std::ranges::count(program_.alias, static_cast<vps::BufferIndex>(b)) == 0)
        AddAll(b, program_.old_buffers[b], &all_old);
    }
    for (size_t b = 0; b < program_.new_buffers.size(); ++b) {
      if (program_.alias[b] < 0) AddAll(b, program_.new_buffers[b], &all_new);
    }
    EXPECT_EQ(gone, all_old);
    EXPECT_EQ(here, all_new);
    return moved;
  }

 private:
  using At = std::pair<vps::BufferIndex, ByteCount>;  // buffer and number of the granule

  template <class Visit>
  static void ForEachGranuleOf(const Region& region, const Visit& visit) {
    ForEachElement(region.offset, region.extent, region.strides,
                   [&](int64_t at) { visit(At{region.buffer, at * region.elem_bytes / kPage}); });
  }

  static void AddAll(size_t index, const vps::Buffer& buffer, std::set<At>* all) {
    for (ByteCount g = 0; g < MemoryBytes(buffer) / kPage; ++g)
      all->emplace(static_cast<vps::BufferIndex>(index), g);
  }

  template <class Visit>
  static void ForEachGranule(const MemoryRange& range, const Visit& visit) {
    for (ByteCount g = range.begin / kPage; g * kPage < range.begin + range.bytes; ++g)
      visit(At{range.buffer, g});
  }

  void Leave(const MemoryRange& range, int32_t after, std::set<At>* gone) const {
    ForEachGranule(range, [&](const At& at) {
      EXPECT_TRUE(gone->insert(at).second) << "goes twice";
      const auto it = last_read_.find(at);
      EXPECT_TRUE(it == last_read_.end() || it->second <= after) << "is read later";
    });
  }

  void Come(const MemoryRange& range, int32_t before, std::set<At>* here) const {
    ForEachGranule(range, [&](const At& at) {
      EXPECT_TRUE(here->insert(at).second) << "comes twice";
      const auto it = first_write_.find(at);
      EXPECT_TRUE(it == first_write_.end() || it->second >= before) << "is written before";
    });
  }

  const Program& program_;
  std::map<At, int32_t> last_read_, first_write_;
};

TEST(PlanMemory, EachGranuleGoesAfterItWasReadAndComesBeforeItIsWritten) {
  int64_t moved = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const RandomSwitch c = testing::DrawSwitch(seed, &random);
    const CompileOptions compile = {.mode = Mode::kStream,
                                    .phases = static_cast<int32_t>(random.Between(1, 12)),
                                    .granule_bytes = random.OneIn(2) ? kPage : 4 * kPage};
    for (const Program& program :
         testing::CompileAll(*c.from, *c.to, c.options.topology, c.options.ranks, compile))
      moved += Granules(program).Check();
    if (HasFailure()) return;
  }
  EXPECT_GT(moved, 0);
}

}  // namespace
}  // namespace dynatrain::engine
