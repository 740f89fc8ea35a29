// Which granules of old and new memory each phase of a streaming program gives back and takes, and
// the peak that follows.
#ifndef DYNATRAIN_ENGINE_MEMORY_PLAN_H_
#define DYNATRAIN_ENGINE_MEMORY_PLAN_H_

#include <vector>

#include "dynatrain/engine/program.h"

namespace dynatrain::engine {

inline constexpr ByteCount kPageBytes = 4096;

// Bytes of memory that a buffer takes: whole pages.
ByteCount MemoryBytes(const vps::Buffer& buffer);
ByteCount MemoryBytes(const std::vector<vps::Buffer>& buffers);

// Fills drops, moves, takes and releases of all phases from their messages and copies. A granule is taken
// in the first phase that writes it (or the last one, if it is all padding) and released after the
// last phase that reads it. Regions are rounded outwards. Returns the most memory that the rank's
// state takes at any time, without staging.
ByteCount PlanMemory(ByteCount granule_bytes, Program* program);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_MEMORY_PLAN_H_
