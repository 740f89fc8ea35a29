// Storage: one allocation of state memory, page aligned and touched.
#ifndef DYNATRAIN_ENGINE_STORAGE_H_
#define DYNATRAIN_ENGINE_STORAGE_H_

#include <memory>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::engine {

class Storage {
 public:
  // Zeros, touched. kResourceExhausted if there is no memory. Zero bytes are fine.
  static Result<std::shared_ptr<Storage>> Make(ByteCount bytes);
  // Address space alone: zeros that take memory where Take or a write touches them.
  static Result<std::shared_ptr<Storage>> Reserve(ByteCount bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Whole pages: at least what was asked for.
  ByteSpan memory() const { return memory_; }

  // Of whole pages of memory(): makes them take memory; returns them to the system, after which
  // they read as zeros.
  Status Take(ByteCount begin, ByteCount bytes);
  void GiveBack(ByteCount begin, ByteCount bytes);
  // Take with the memory that `bytes` from `other_begin` of `other` take, which are given back there:
  // moved page by page where the system can, without a copy. What the range holds then is not
  // specified. kResourceExhausted.
  Status TakeOver(ByteCount begin, Storage& other, ByteCount other_begin, ByteCount bytes);
  // Bytes of memory() that take memory now, as the system says.
  ByteCount ResidentBytes() const;

 private:
  explicit Storage(ByteSpan memory) : memory_(memory) {}
  bool Move(std::byte* from, std::byte* to, ByteCount bytes);

  ByteSpan memory_;
  int64_t moved_ = 0;  // pieces that came from elsewhere
};

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_STORAGE_H_
