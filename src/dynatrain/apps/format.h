// Quantities as people read them.
#ifndef DYNATRAIN_APPS_FORMAT_H_
#define DYNATRAIN_APPS_FORMAT_H_

#include <string>

#include "dynatrain/base/types.h"

namespace dynatrain::apps {

std::string FormatBytes(ByteCount bytes);   // "12.3 MB" (powers of ten)
std::string FormatSeconds(double seconds);  // "34.5 ms", "1.23 s"
std::string FormatRate(double per_second);  // "3.4k"

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_FORMAT_H_
