#include "dynatrain/apps/format.h"

#include <fmt/format.h>

namespace dynatrain::apps {

std::string FormatBytes(ByteCount bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1000) return fmt::format("{} B", bytes);
  if (value < 1e6) return fmt::format("{:.1f} kB", value / 1e3);
  if (value < 1e9) return fmt::format("{:.1f} MB", value / 1e6);
  if (value < 1e12) return fmt::format("{:.2f} GB", value / 1e9);
  return fmt::format("{:.2f} TB", value / 1e12);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string FormatRate(double per_second) {
  if (per_second < 1000) return fmt::format("{:.0f}", per_second);
  return fmt::format("{:.1f}k", per_second / 1e3);
}

}  // namespace dynatrain::apps
