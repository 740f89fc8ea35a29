// The few plain types that every folder shares.
#ifndef DYNATRAIN_BASE_TYPES_H_
#define DYNATRAIN_BASE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynatrain {

// A process of the job and the device it drives: 0 .. number of started processes - 1. A rank keeps
// its number over all layouts and groups; positions inside a layout or group are never called rank.
using RankId = int32_t;

// Bytes; signed so that differences are safe.
using ByteCount = int64_t;

using ByteSpan = std::span<std::byte>;
using ConstByteSpan = std::span<const std::byte>;

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_TYPES_H_
