// One rank's part in saving and loading checkpoints. Files are io's; what ranks tell each other of
// them goes through the store.
#ifndef DYNATRAIN_APPS_RANK_CHECKPOINT_H_
#define DYNATRAIN_APPS_RANK_CHECKPOINT_H_

#include <string>
#include <string_view>

#include "dynatrain/apps/events.h"
#include "dynatrain/apps/job_config.h"
#include "dynatrain/apps/job_setup.h"
#include "dynatrain/elastic/store.h"
#include "dynatrain/elastic/switch.h"

namespace dynatrain::apps {

// What saving and loading need of a rank; outlives the calls.
struct CheckpointContext {
  RankId rank = 0;
  const JobConfig* config = nullptr;
  const JobSetup* setup = nullptr;
  elastic::Store* store = nullptr;
  EventWriter* events = nullptr;
};

// Every active rank, at the boundary after `step`, with the same arguments; `occasion` tells apart
// saves of one step. Writes the checkpoint to config.save, or on every rank nothing: then the
// lowest rank tells "save_failed", older checkpoints stay, and the result is false. An error only if
// the ranks cannot agree.
Result<bool> SaveCheckpoint(const CheckpointContext& context,
                            const elastic::LayoutInstance& instance, int64_t step,
                            const std::string& job_state, std::string_view occasion);

// Every active rank of the first layout: fills the instance's state from the checkpoint
// config.resume, and checks that all ranks together hold the state that was saved (kDataLoss).
// Returns the job state.
Result<std::string> LoadCheckpoint(const CheckpointContext& context,
                                   elastic::LayoutInstance* instance);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_RANK_CHECKPOINT_H_
