// How much memory a job needs, told and checked before it starts.
#ifndef DYNATRAIN_APPS_MEMORY_NEED_H_
#define DYNATRAIN_APPS_MEMORY_NEED_H_

#include <string>

#include "dynatrain/apps/job_config.h"
#include "dynatrain/apps/job_setup.h"
#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::apps {

// What ranks of one layout hold together.
struct MemoryNeed {
  ByteCount state = 0;        // parameters and moments with their padding
  ByteCount gradients = 0;    // as much as the parameters
  ByteCount activations = 0;  // at least, of one micro-batch at a time
  ByteCount total() const { return state + gradients + activations; }
};
// Of those of the layout's ranks that are among `count` from `first` on.
MemoryNeed NeedOf(const JobSetup& setup, const vps::LayoutShardMap& map, RankId first,
                  int32_t count);

// MemAvailable of /proc/meminfo text, in bytes; kNotFound if it is not told.
Result<ByteCount> MemAvailable(std::string_view meminfo);

// MemAvailable of this machine.
Result<ByteCount> AvailableMemory();

// A line that tells what the ranks of this machine need, `count` from `first` on, and what there is.
// kResourceExhausted, with the numbers, if a layout of the job needs more than there is even
// without a switch: the need is a lower bound.
Result<std::string> CheckMemory(const JobConfig& config, const JobSetup& setup, RankId first,
                                int32_t count);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_MEMORY_NEED_H_
