// SwitchAgent: the shell around SwitchParticipant in a real rank. Owns one background thread that
// watches the store for requests and prepares them; the training thread meets it at step
// boundaries.
//
//   while (step < steps) {
//     if (!agent.current().active()) { agent.WaitWhileIdle(); ...activate or end... }
//     sum = train_step(ready = agent.ready());  // one integer in the step's own reduction
//     agent.AtStepBoundary(step, sum == number of active ranks);
//   }
#ifndef DYNATRAIN_ELASTIC_AGENT_H_
#define DYNATRAIN_ELASTIC_AGENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dynatrain/elastic/switch.h"

namespace dynatrain::elastic {

struct BoundaryResult {
  enum class What { kNothing, kCommitted, kRolledBack, kJobEnded };
  What what = What::kNothing;
  std::string job_state;  // kCommitted
  std::string reason;     // kRolledBack, kJobEnded
  // kCommitted, on a rank that is active now: SwitchParticipant::role_state.
  std::optional<std::string> role_state = {};
};

// Runs `body` beside the caller and returns a function that waits for its end. Tests bring one of
// their own scheduler.
using Spawn = std::function<std::function<void()>(std::function<void()> body)>;
// A std::thread.
Spawn ThreadSpawn();

class SwitchAgent {
 public:
  // `store` is for the training thread; clones are made for the background. `initial`: epoch 0.
  // `on_report` is called on the background thread of one rank (lowest new rank if committed, else
  // lowest old) once per switch, with the merged report.
  static Result<std::unique_ptr<SwitchAgent>> Start(
      SwitchParticipant::Context context, std::shared_ptr<Store> store,
      std::shared_ptr<LayoutInstance> initial, std::function<void(const SwitchReport&)> on_report,
      const Spawn& spawn = ThreadSpawn());
  // Calls off a switch that this rank has not begun to move in, leaves the group factory, sends out
  // its last reports, stops and joins the background thread: a few heartbeats, report_timeout at
  // most if other ranks owe reports.
  ~SwitchAgent();

  SwitchAgent(const SwitchAgent&) = delete;
  SwitchAgent& operator=(const SwitchAgent&) = delete;

  // The methods below are for the training thread.

  // The layout this rank is in now. Stable between boundaries.
  LayoutInstance& current();

  // Whether this rank has prepared the next switch: read once per step, before the reduction. Being
  // told "no" is also taking notice that the switch it was ready for is off.
  bool ready();
  // The id of that switch; 0 if there is none.
  int64_t ready_switch() const;

  // After each `step` (counted from 1) has ended. all_ready: every active rank was ready in this
  // step's reduction. kNothing at once if not, or kRolledBack if the switch that this rank was
  // ready for is off. An error ends the job: the store or state is lost.
  Result<BoundaryResult> AtStepBoundary(int64_t step, bool all_ready);

  // For a rank that is idle in the current layout: waits (no deadline: idle is no error) for a
  // switch that makes it active, for a switch in which it takes no part, or for the end of the job.
  // kCommitted: look at current(), it may be idle again.
  Result<BoundaryResult> WaitWhileIdle();

  // Costs of the last committed switch that only the loop knows. The new layout's first step starts
  // now.
  void FirstStepStarts();
  // Seconds of each of the first steps after a switch; the report goes out after the fifth or at
  // Stop.
  void StepTook(double seconds);

 private:
  class Impl;
  explicit SwitchAgent(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// Asks for a switch: takes the next free id. For launcher and scheduling rank.
Result<int64_t> RequestSwitch(Store& store, const std::string& spec, int64_t requested_step);
// Tells all ranks that the job is over; idle ranks return kJobEnded.
Status EndJob(Store& store, const std::string& reason);

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_AGENT_H_
