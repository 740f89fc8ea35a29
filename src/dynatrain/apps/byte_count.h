// Numbers of bytes as people write them.
#ifndef DYNATRAIN_APPS_BYTE_COUNT_H_
#define DYNATRAIN_APPS_BYTE_COUNT_H_

#include <string>
#include <string_view>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::apps {

// "1048576", "64MiB", "1.5GB": a number of 0 or more with B, kB, MB, GB, TB (powers of ten), KiB,
// MiB, GiB, TiB (powers of two) or nothing. Errors name `flag` and the text.
Result<ByteCount> ParseBytes(std::string_view flag, const std::string& text);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_BYTE_COUNT_H_
