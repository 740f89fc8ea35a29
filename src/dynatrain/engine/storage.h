// Storage: one allocation of state memory, page aligned and touched.
#ifndef DYNATRAIN_ENGINE_STORAGE_H_
#define DYNATRAIN_ENGINE_STORAGE_H_

#include <memory>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::engine {

class Storage {
 public:
  // Zeros. kResourceExhausted if there is no memory. Zero bytes are fine.
  static Result<std::shared_ptr<Storage>> Make(ByteCount bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Whole pages: at least what was asked for.
  ByteSpan memory() const { return memory_; }

 private:
  explicit Storage(ByteSpan memory) : memory_(memory) {}
  ByteSpan memory_;
};

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_STORAGE_H_
