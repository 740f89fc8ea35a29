// The launcher: `dynatrain train`. Starts the ranks of its node, hosts the store, serves control
// requests, shows progress, and ends everything with one clear message when a rank fails.
#ifndef DYNATRAIN_APPS_LAUNCHER_H_
#define DYNATRAIN_APPS_LAUNCHER_H_

#include <optional>
#include <string>

#include "dynatrain/apps/control.h"
#include "dynatrain/apps/job_config.h"
#include "dynatrain/apps/nodes.h"

namespace dynatrain::apps {

struct LaunchOptions {
  JobConfig config;
  std::optional<Address> control;   // none: no control server
  std::optional<std::string> json;  // where JSON lines go: "-" is standard output; none: nowhere
  std::string
      log_directory;  // of the ranks' logs; empty: a temporary one, kept only after a failure
  std::string note;   // told before the ranks start
  NodeOptions node;   // this launcher among those of the job
};

// Runs the job to its end. A first SIGINT or SIGTERM ends it after the current step with a
// checkpoint if the job has a directory for them, else at once, as does a second one. Ok, or the one
// thing that went wrong first; no rank process is left either way.
Status Launch(const LaunchOptions& options);

// For a first launcher that does not come to Launch: tells the others, if there are any, why the job
// will not start. Waits until all have heard it, for some seconds at most.
void RefuseOthers(const NodeOptions& node, const Status& why);

// The same as Launch for a launcher that is not the job's first (NodeOptions::index > 0): starts its ranks with
// the first one's configuration, and ends with them or when the first one says so.
Status LaunchFurther(const NodeOptions& node, const std::string& log_directory);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_LAUNCHER_H_
