// Text files that people name: topologies, configurations of models.
#ifndef DYNATRAIN_BASE_TEXT_FILE_H_
#define DYNATRAIN_BASE_TEXT_FILE_H_

#include <string>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain {

inline constexpr ByteCount kLongestTextFile = ByteCount{16} << 20;

// The whole content of a regular file of at most kLongestTextFile bytes. Never waits, as opening a
// FIFO would. Messages leave the path to the caller: kNotFound without such a file, kInvalidArgument
// with what it is instead and what is right, kUnavailable with the system's reason. Any thread.
Result<std::string> ReadTextFile(const std::string& path);

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_TEXT_FILE_H_
