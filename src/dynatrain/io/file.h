// Files, whole: mapped for reading, replaced atomically when written.
#ifndef DYNATRAIN_IO_FILE_H_
#define DYNATRAIN_IO_FILE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::io {

// A file mapped read-only; the bytes live as long as the object. Movable, thread-compatible.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  ConstByteSpan bytes() const { return bytes_; }
  std::string_view text() const;

  // Lets go of the memory behind whole pages of a part of bytes(), whose content is read again from
  // the file when it is next touched.
  static void Forget(ConstByteSpan part);

 private:
  explicit MappedFile(ConstByteSpan bytes) : bytes_(bytes) {}
  ConstByteSpan bytes_;
};

// A file that is replaced atomically: written to path + ".tmp", part by part, then synced and renamed
// to `path`. A crash leaves the old file or the new one; without Commit the old one stays. Errors
// name the path and the system's reason (disk full, no such directory, ...). Movable,
// thread-compatible.
class AtomicFile {
 public:
  static Result<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  Status Append(ConstByteSpan bytes);
  Status Commit();  // once, as the last call

 private:
  AtomicFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string temporary() const { return path_ + ".tmp"; }
  std::string path_;
  int fd_;  // below 0: committed or moved from
};

// The same for a file whose parts are all there.
Status WriteFileAtomically(const std::string& path, const std::vector<ConstByteSpan>& parts);
Status WriteFileAtomically(const std::string& path, std::string_view text);

// Syncs a directory, so that names made or renamed in it last.
Status SyncDirectory(const std::string& path);

inline ConstByteSpan AsBytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace dynatrain::io

#endif  // DYNATRAIN_IO_FILE_H_
