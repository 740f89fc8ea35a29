// How much memory this process takes, as Linux counts it (resident set).
#ifndef DYNATRAIN_BASE_PROCESS_MEMORY_H_
#define DYNATRAIN_BASE_PROCESS_MEMORY_H_

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain {

struct ProcessMemory {
  ByteCount resident = 0;
  ByteCount file = 0;  // of `resident`, pages of files: code above all, shared and given up at need
  ByteCount peak = 0;  // the largest `resident` since the start or the last ResetPeakMemory
};

// From /proc/self/status; exact to some hundred KiB (the kernel counts per thread in batches). Any
// thread.
Result<ProcessMemory> ReadProcessMemory();

// Lets the peak begin anew at what is resident now.
Status ResetPeakMemory();

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_PROCESS_MEMORY_H_
