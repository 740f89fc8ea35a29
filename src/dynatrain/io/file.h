// Files, whole: mapped for reading, replaced atomically when written.
#ifndef DYNATRAIN_IO_FILE_H_
#define DYNATRAIN_IO_FILE_H_

#include <string>
#include <string_view>
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

 private:
  explicit MappedFile(ConstByteSpan bytes) : bytes_(bytes) {}
  ConstByteSpan bytes_;
};

// Writes `parts` one after the other to path + ".tmp", syncs, and renames it to `path`: a crash
// leaves the old file or the new one. The error names the path and the system's reason (disk full,
// no such directory, ...).
Status WriteFileAtomically(const std::string& path, const std::vector<ConstByteSpan>& parts);
Status WriteFileAtomically(const std::string& path, std::string_view text);

// Syncs a directory, so that names made or renamed in it last.
Status SyncDirectory(const std::string& path);

inline ConstByteSpan AsBytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace dynatrain::io

#endif  // DYNATRAIN_IO_FILE_H_
