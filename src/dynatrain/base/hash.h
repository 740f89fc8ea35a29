// 64-bit mixing: the finaliser of SplitMix64 (Steele, Lea, Flood 2014) and a builder on top of it.
#ifndef DYNATRAIN_BASE_HASH_H_
#define DYNATRAIN_BASE_HASH_H_

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace dynatrain {

// A bijection of 64 bits in which every input bit changes every output bit about half of the time.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Hash of a sequence of integers, enums and strings; order and lengths count. Equal on all
// machines.
class Hasher {
 public:
  template <class T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  Hasher& Add(T value) {
    state_ = Mix64(state_ ^ static_cast<uint64_t>(value)) + 0x632be59bd9b4e019ULL;
    return *this;
  }
  Hasher& Add(std::string_view text) {
    Add(text.size());
    for (const char c : text) Add(static_cast<unsigned char>(c));
    return *this;
  }
  uint64_t hash() const { return Mix64(state_); }

 private:
  uint64_t state_ = 0;
};

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_HASH_H_
