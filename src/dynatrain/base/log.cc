#include "dynatrain/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace dynatrain {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& Logger() {
  static spdlog::logger logger("dynatrain", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  return logger;
}

}  // namespace

void InitLog(std::string_view who, LogLevel least) {
  Logger().set_pattern(fmt::format("[%H:%M:%S.%e {}] %l: %v", who));
  Logger().set_level(ToSpdlog(least));
}

void LogLine(LogLevel level, std::string_view line) { Logger().log(ToSpdlog(level), "{}", line); }

}  // namespace dynatrain
