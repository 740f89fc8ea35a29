// A directory that one job writes to at a time.
#ifndef DYNATRAIN_APPS_DIRECTORY_LOCK_H_
#define DYNATRAIN_APPS_DIRECTORY_LOCK_H_

#include <string>
#include <string_view>
#include <utility>

#include "dynatrain/base/status.h"

namespace dynatrain::apps {

// An advisory lock (flock) on the directory itself: nothing is written, and nothing is left behind
// however the process ends. Movable.
class DirectoryLock {
 public:
  // kUnavailable, naming `flag` and `directory`, if another job holds it. An empty name needs no
  // lock. Precondition: the directory exists.
  static Result<DirectoryLock> Take(std::string_view flag, const std::string& directory);
  DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_DIRECTORY_LOCK_H_
