#include "dynatrain/apps/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace dynatrain::apps {

Result<DirectoryLock> DirectoryLock::Take(std::string_view flag, const std::string& directory) {
  if (directory.empty()) return DirectoryLock(-1);
  DirectoryLock lock(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.fd_ >= 0 && ::flock(lock.fd_, LOCK_EX | LOCK_NB) == 0) return lock;
  if (lock.fd_ >= 0 && errno == EWOULDBLOCK) {
    return Unavailable("{} {}: another job is writing there; give each job a directory of its own",
                       flag, directory);
  }
  return Unavailable("{} {}: cannot lock it: {}", flag, directory, std::strerror(errno));
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace dynatrain::apps
