// The life of one rank process: join, train, switch, wait while idle, end with the job.
#ifndef DYNATRAIN_APPS_RANK_MAIN_H_
#define DYNATRAIN_APPS_RANK_MAIN_H_

#include <sys/types.h>

#include <string>

#include "dynatrain/base/types.h"

namespace dynatrain::apps {

// Runs `rank` with the JobConfig on kConfigFd, reporting on kEventsFd, against the launcher's
// store. Returns the exit code.
int RankMain(RankId rank, const std::string& store_address, pid_t launcher);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_RANK_MAIN_H_
