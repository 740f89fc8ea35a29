#include "dynatrain/base/process_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace dynatrain {
namespace {

TEST(ProcessMemory, CountsWhatIsTouchedAndForgetsAnOldPeak) {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr ByteCount kNear = ByteCount{8} << 20;
  const auto before = ReadProcessMemory();
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  auto block = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  std::memset(block.get(), 1, kBytes);
  const auto with = ReadProcessMemory();
  EXPECT_NEAR(static_cast<double>(with->resident - before->resident), kBytes, kNear);
  EXPECT_GE(with->peak, with->resident - kNear);
  block.reset();
  EXPECT_GE(ReadProcessMemory()->peak, with->resident - kNear) << "a peak stays";
  ASSERT_TRUE(ResetPeakMemory().ok());
  EXPECT_LE(ReadProcessMemory()->peak, before->resident + kNear);
}

}  // namespace
}  // namespace dynatrain
