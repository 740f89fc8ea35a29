#include "dynatrain/base/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "dynatrain/base/descriptor.h"

namespace dynatrain {
namespace {

constexpr size_t kChunkBytes = 65536;

std::string_view KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no regular file";
}

Status Refused(std::string_view what) {
  return InvalidArgument("{}; right is a regular file of at most {} MiB", what,
                         kLongestTextFile >> 20);
}

}  // namespace

Result<std::string> ReadTextFile(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const int error = errno;
  if (file.get() < 0 && (error == ENOENT || error == ENOTDIR)) {
    return NotFound("{}", std::strerror(error));
  }
  struct stat info{};
  // A socket cannot be opened, but told.
  if ((file.get() < 0 ? ::stat(path.c_str(), &info) : ::fstat(file.get(), &info)) == 0 &&
      !S_ISREG(info.st_mode)) {
    return Refused(KindOf(info.st_mode));
  }
  if (file.get() < 0) return Unavailable("{}", std::strerror(error));
  // Sizes of the system's own files are told as 0.
  std::string text;
  while (static_cast<ByteCount>(text.size()) <= kLongestTextFile) {
    const size_t held = text.size();
    text.resize(held + kChunkBytes);
    const ssize_t count = ::read(file.get(), text.data() + held, kChunkBytes);
    const int read_error = errno;
    text.resize(held + static_cast<size_t>(count > 0 ? count : 0));
    if (count == 0) return text;
    if (count < 0 && read_error != EINTR) return Unavailable("{}", std::strerror(read_error));
  }
  return Refused("longer than any text that is read here");
}

}  // namespace dynatrain
