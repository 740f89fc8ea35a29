#include "dynatrain/engine/storage.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "dynatrain/base/check.h"

namespace dynatrain::engine {
namespace {

constexpr ByteCount kPage = 4096;
constexpr ByteCount kHugePage = ByteCount{2} << 20;

// Pieces of storage that were moved, of the whole process: each may be a mapping of its own, of which
// Linux allows 65530 to a process (vm.max_map_count) that has others too.
constexpr int64_t kMostMoved = int64_t{16} << 10;
std::atomic<int64_t> moved_pieces = 0;

// Whole pages, zero and untouched; from 2 MiB on at a multiple of 2 MiB, so that granules are huge
// pages. Empty on failure.
ByteSpan Map(ByteCount bytes) {
  const ByteCount capacity = (bytes + kPage - 1) / kPage * kPage;
  const ByteCount slack = capacity >= kHugePage ? kHugePage : 0;
  void* memory = mmap(nullptr, static_cast<size_t>(capacity + slack), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  auto* start = static_cast<std::byte*>(memory);
  if (slack > 0) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const auto skip = static_cast<ByteCount>(-address % static_cast<uintptr_t>(kHugePage));
    if (skip > 0) munmap(start, static_cast<size_t>(skip));
    if (skip < slack) munmap(start + skip + capacity, static_cast<size_t>(slack - skip));
    start += skip;
  }
#ifdef MADV_NOHUGEPAGE
  // Until Take says otherwise: what is not taken must not come along inside a huge page.
  madvise(start, static_cast<size_t>(capacity), MADV_NOHUGEPAGE);
#endif
  return {start, static_cast<size_t>(capacity)};
}

}  // namespace

Result<std::shared_ptr<Storage>> Storage::Reserve(ByteCount bytes) {
  DT_CHECK(bytes >= 0);
  if (bytes == 0) return std::shared_ptr<Storage>(new Storage({}));
  const ByteSpan memory = Map(bytes);
  if (memory.empty())
    return ResourceExhausted("no memory for a buffer of {} bytes: {}", bytes, std::strerror(errno));
  return std::shared_ptr<Storage>(new Storage(memory));
}

Result<std::shared_ptr<Storage>> Storage::Make(ByteCount bytes) {
  DT_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage, Reserve(bytes));
  DT_RETURN_IF_ERROR(storage->Take(0, static_cast<ByteCount>(storage->memory().size())));
  return storage;
}

Status Storage::Take(ByteCount begin, ByteCount bytes) {
  DT_CHECK(begin % kPage == 0 && begin + bytes <= static_cast<ByteCount>(memory_.size()));
  std::byte* start = memory_.data() + begin;
#ifdef MADV_HUGEPAGE
  // Whole ones only: what is next to the range is not to be taken along.
  const ByteCount first_huge = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const ByteCount end_huge = (begin + bytes) / kHugePage * kHugePage;
  if (first_huge < end_huge)
    madvise(memory_.data() + first_huge, static_cast<size_t>(end_huge - first_huge), MADV_HUGEPAGE);
#endif
#ifdef MADV_POPULATE_WRITE
  if (bytes > 0 && madvise(start, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0)
    return Status::Ok();
  if (bytes > 0 && errno == ENOMEM)
    return ResourceExhausted("no memory for {} bytes of state", bytes);
#endif
  for (ByteCount at = 0; at < bytes; at += kPage) {
    auto* page = reinterpret_cast<volatile unsigned char*>(start + at);
    *page = *page;
  }
  return Status::Ok();
}

void Storage::GiveBack(ByteCount begin, ByteCount bytes) {
  DT_CHECK(begin % kPage == 0 && begin + bytes <= static_cast<ByteCount>(memory_.size()));
  if (bytes <= 0) return;
  std::byte* start = memory_.data() + begin;
#ifdef MADV_NOHUGEPAGE
  // Else the system may collapse what is left of a huge page into a whole one again.
  madvise(start, static_cast<size_t>(bytes), MADV_NOHUGEPAGE);
#endif
  madvise(start, static_cast<size_t>(bytes), MADV_DONTNEED);
}

Status Storage::TakeOver(ByteCount begin, Storage& other, ByteCount other_begin, ByteCount bytes) {
  DT_CHECK(begin % kPage == 0 && begin + bytes <= static_cast<ByteCount>(memory_.size()));
  DT_CHECK(other_begin % kPage == 0 &&
           other_begin + bytes <= static_cast<ByteCount>(other.memory_.size()));
  while (bytes > 0) {
    const ByteCount piece = std::min(bytes, kHugePage);
    if (!Move(other.memory_.data() + other_begin, memory_.data() + begin, piece)) {
      other.GiveBack(other_begin, piece);
      DT_RETURN_IF_ERROR(Take(begin, piece));
    }
    begin += piece;
    other_begin += piece;
    bytes -= piece;
  }
  return Status::Ok();
}

// False if nothing was moved.
bool Storage::Move(std::byte* from, std::byte* to, ByteCount bytes) {
#ifdef MREMAP_DONTUNMAP
  if (moved_pieces.load(std::memory_order_relaxed) >= kMostMoved) return false;
  const auto size = static_cast<size_t>(bytes);
  // `from` stays mapped, empty: nobody else's memory can come to lie inside a storage.
  if (mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) !=
      MAP_FAILED) {
    moved_pieces.fetch_add(1, std::memory_order_relaxed);
    ++moved_;
    return true;
  }
  // A failure may have unmapped `to`; if it has not, this changes nothing.
  const void* again = mmap(to, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  DT_CHECK(again != MAP_FAILED || errno == EEXIST);
#endif
  return false;
}

ByteCount Storage::ResidentBytes() const {
  if (memory_.empty()) return 0;
  std::vector<unsigned char> pages(memory_.size() / static_cast<size_t>(kPage));
  if (mincore(memory_.data(), memory_.size(), pages.data()) != 0)
    return static_cast<ByteCount>(memory_.size());
  return std::count_if(pages.begin(), pages.end(),
                       [](unsigned char page) { return (page & 1) != 0; }) *
         kPage;
}

Storage::~Storage() {
  moved_pieces.fetch_sub(moved_, std::memory_order_relaxed);
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

}  // namespace dynatrain::engine
