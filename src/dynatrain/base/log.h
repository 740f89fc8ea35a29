// Progress and diagnostics of a process, to standard error: "[12.345 rank 3] switch 2: prepared".
#ifndef DYNATRAIN_BASE_LOG_H_
#define DYNATRAIN_BASE_LOG_H_

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace dynatrain {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets who speaks in this process ("rank 3", "launcher") and the least level that is written.
// Call before other threads log.
void InitLog(std::string_view who, LogLevel least);

// Any thread. One line, written whole.
void LogLine(LogLevel level, std::string_view line);

template <class... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_LOG_H_
