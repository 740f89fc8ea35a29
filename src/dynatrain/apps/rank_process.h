// What every process that a launcher starts does first and last.
#ifndef DYNATRAIN_APPS_RANK_PROCESS_H_
#define DYNATRAIN_APPS_RANK_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "dynatrain/apps/events.h"
#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::apps {

// Runs `body` with what is on kConfigFd, reporting on kEventsFd (children.h); the process ends with
// `launcher`, its parent. An error of `body` becomes an "error" event. Returns the exit code, or
// ends the process at once after an error, without destroying what lives outside of `body`.
int RunRankProcess(
    RankId rank, pid_t launcher,
    const std::function<Status(const std::string& config, EventWriter* events)>& body);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_RANK_PROCESS_H_
