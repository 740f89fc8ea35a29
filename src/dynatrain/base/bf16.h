// bfloat16 (the upper half of an fp32) as raw bits.
#ifndef DYNATRAIN_BASE_BF16_H_
#define DYNATRAIN_BASE_BF16_H_

#include <bit>
#include <cstdint>

namespace dynatrain {

// The nearest bfloat16, ties to even; any NaN becomes 0x7fc0. The same bits as torch's conversion.
inline uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

// Exact.
inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_BF16_H_
