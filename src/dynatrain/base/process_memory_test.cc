#include "dynatrain/base/process_memory.h"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cstring>

namespace dynatrain {
namespace {

TEST(ProcessMemory, CountsWhatIsTouchedAndForgetsAnOldPeak) {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr ByteCount kNear = ByteCount{8} << 20;
  const auto before = ReadProcessMemory();
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  // Mapped by hand: an allocator may keep what it is given back, and sanitizers add memory of theirs.
  void* block = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  const auto with = ReadProcessMemory();
  EXPECT_GE(with->resident, before->resident + static_cast<ByteCount>(kBytes) - kNear);
  EXPECT_GE(with->peak, with->resident - kNear);
  ASSERT_EQ(::munmap(block, kBytes), 0);
  EXPECT_GE(ReadProcessMemory()->peak, with->resident - kNear) << "a peak stays";
  ASSERT_TRUE(ResetPeakMemory().ok());
  EXPECT_LE(ReadProcessMemory()->peak, with->resident - static_cast<ByteCount>(kBytes) + kNear);
}

}  // namespace
}  // namespace dynatrain
