#include "dynatrain/apps/byte_count.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace dynatrain::apps {

Result<ByteCount> ParseBytes(std::string_view flag, const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},         {"kB", 1e3},      {"MB", 1e6},      {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 0x1p40}};
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const std::string_view unit(stop, static_cast<size_t>(end - stop));
  for (const auto& [name, factor] : kUnits) {
    if (error != std::errc() || unit != name || !(number >= 0) || number * factor > 0x1p62)
      continue;
    return static_cast<ByteCount>(std::floor(number * factor));
  }
  return InvalidArgument("{} {}: give a number of bytes, such as 1048576, 64MiB or 1.5GB", flag,
                         text);
}

}  // namespace dynatrain::apps
