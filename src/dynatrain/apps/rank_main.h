// The life of one rank process: join, train, switch, wait while idle, end with the job.
#ifndef DYNATRAIN_APPS_RANK_MAIN_H_
#define DYNATRAIN_APPS_RANK_MAIN_H_

#include <sys/types.h>

#include "dynatrain/base/types.h"
#include "dynatrain/bridge/c10d_groups.h"
#include "dynatrain/bridge/c10d_store.h"

namespace dynatrain::apps {

// Runs `rank` with the JobConfig on kConfigFd, reporting on kEventsFd, against the launcher's
// store, with groups that listen where `gloo` says. Returns the exit code.
int RankMain(RankId rank, const bridge::StoreAddress& store, const bridge::GlooOptions& gloo,
             pid_t launcher);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_RANK_MAIN_H_
