// Seeded random numbers: the same sequence on every machine for the same seed.
#ifndef DYNATRAIN_BASE_RANDOM_H_
#define DYNATRAIN_BASE_RANDOM_H_

#include <cstdint>

#include "dynatrain/base/check.h"
#include "dynatrain/base/hash.h"

namespace dynatrain {

// SplitMix64. Satisfies UniformRandomBitGenerator. Not thread-safe; copy it to fork a stream.
class Random {
 public:
  using result_type = uint64_t;
  explicit Random(uint64_t seed) : state_(seed) {}

  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
  uint64_t operator()() { return Mix64(state_++); }

  // Uniform in [lo, hi], both included.
  int64_t Between(int64_t lo, int64_t hi) {
    DT_CHECK(lo <= hi);
    const auto range = static_cast<uint64_t>(hi - lo) + 1;
    return lo + static_cast<int64_t>(range == 0 ? (*this)() : (*this)() % range);
  }
  // True once in `n` times.
  bool OneIn(int64_t n) { return Between(0, n - 1) == 0; }
  // Uniform in [0, 1).
  double Unit() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_RANDOM_H_
