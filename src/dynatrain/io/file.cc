#include "dynatrain/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
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

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // Opening a pipe waits for its writer otherwise; regular files know no difference.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
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

void MappedFile::Forget(ConstByteSpan part) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  AtomicFile file(path, -1);
  file.fd_ = ::open(file.temporary().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file.fd_ < 0) return SystemError("cannot create", file.temporary());
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary().c_str());
}

Status AtomicFile::Append(ConstByteSpan bytes) { return WriteAll(fd_, bytes, temporary()); }

Status AtomicFile::Commit() {
  if (::fsync(fd_) != 0) return SystemError("cannot sync", temporary());
  if (std::rename(temporary().c_str(), path_.c_str()) != 0) {
    return SystemError("cannot rename to", path_);
  }
  ::close(std::exchange(fd_, -1));
  return {};
}

Status WriteFileAtomically(const std::string& path, const std::vector<ConstByteSpan>& parts) {
  DT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  for (const ConstByteSpan part : parts) DT_RETURN_IF_ERROR(file.Append(part));
  return file.Commit();
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
