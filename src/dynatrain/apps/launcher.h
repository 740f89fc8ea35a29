// The launcher: `dynatrain train` on one machine. Starts the ranks, hosts the store, serves control
// requests, shows progress, and ends everything with one clear message when a rank fails.
#ifndef DYNATRAIN_APPS_LAUNCHER_H_
#define DYNATRAIN_APPS_LAUNCHER_H_

#include <optional>
#include <string>

#include "dynatrain/apps/control.h"
#include "dynatrain/apps/job_config.h"

namespace dynatrain::apps {

struct LaunchOptions {
  JobConfig config;
  std::optional<Address> control;   // none: no control server
  std::optional<std::string> json;  // where JSON lines go: "-" is standard output; none: nowhere
  std::string
      log_directory;  // of the ranks' logs; empty: a temporary one, kept only after a failure
  std::string note;   // told before the ranks start
};

// Runs the job to its end. A first SIGINT or SIGTERM ends it after the current step, with a
// checkpoint if the job has a directory for them; a second one at once. Ok, or the one thing that went wrong first; no rank process is left
// either way.
Status Launch(const LaunchOptions& options);

// The signal that ended the last job, 0 if none did.
int StopSignal();

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_LAUNCHER_H_
