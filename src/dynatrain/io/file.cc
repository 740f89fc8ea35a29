#include "dynatrain/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "dynatrain/base/descriptor.h"

namespace dynatrain::io {
namespace {

Status SystemError(std::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text = fmt::format("{} {}: {}", what, path, std::strerror(error));
  if (error == ENOENT) return NotFound("{}", text);
  if (error == ENOSPC || error == EDQUOT) return ResourceExhausted("{}", text);
  return Unavailable("{}", text);
}

Status WriteAll(int fd, ConstByteSpan data, const std::string& path) {
  while (!data.empty()) {
    const ssize_t written = ::write(fd, data.data(), data.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return SystemError("cannot write", path);
    }
    data = data.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status WriteAndSync(const std::string& path, const std::vector<ConstByteSpan>& parts) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) return SystemError("cannot create", path);
  for (const ConstByteSpan part : parts) DT_RETURN_IF_ERROR(WriteAll(file.get(), part, path));
  if (::fsync(file.get()) != 0) return SystemError("cannot sync", path);
  return {};
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return SystemError("cannot open", path);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) return SystemError("cannot read", path);
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{} is not a regular file", path);
  const auto length = static_cast<size_t>(info.st_size);
  if (length == 0) return MappedFile(ConstByteSpan());
  void* address = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) return SystemError("cannot map", path);
  return MappedFile(ConstByteSpan(static_cast<const std::byte*>(address), length));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, ConstByteSpan())) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::string_view MappedFile::text() const {
  return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
}

Status WriteFileAtomically(const std::string& path, const std::vector<ConstByteSpan>& parts) {
  const std::string temporary = path + ".tmp";
  if (Status written = WriteAndSync(temporary, parts); !written.ok()) {
    ::unlink(temporary.c_str());
    return written;
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    Status failed = SystemError("cannot rename to", path);
    ::unlink(temporary.c_str());
    return failed;
  }
  return {};
}

Status WriteFileAtomically(const std::string& path, std::string_view text) {
  return WriteFileAtomically(path, {AsBytes(text)});
}

Status SyncDirectory(const std::string& path) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return SystemError("cannot open", path);
  if (::fsync(directory.get()) != 0) return SystemError("cannot sync", path);
  return {};
}

}  // namespace dynatrain::io
