#ifndef DYNATRAIN_APPS_LOG_DIRECTORY_H_
#define DYNATRAIN_APPS_LOG_DIRECTORY_H_

#include <memory>
#include <string>

#include "dynatrain/base/status.h"

namespace dynatrain::apps {

// A directory for the ranks' logs; a temporary one is removed unless kept.
class LogDirectory {
 public:
  // `wanted` is made if there is none; empty: a temporary one.
  static Result<std::unique_ptr<LogDirectory>> Make(const std::string& wanted);
  LogDirectory(std::string path, bool temporary) : path_(std::move(path)), temporary_(temporary) {}
  LogDirectory(const LogDirectory&) = delete;
  LogDirectory& operator=(const LogDirectory&) = delete;
  ~LogDirectory();
  void Keep() { temporary_ = false; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool temporary_;
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_LOG_DIRECTORY_H_
