// Blame: of all that goes wrong when a job fails, the one thing that explains the rest.
#ifndef DYNATRAIN_APPS_BLAME_H_
#define DYNATRAIN_APPS_BLAME_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dynatrain/apps/children.h"
#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::apps {

// A rank that was killed explains the errors of those that waited for it; of those, who waited to a
// deadline explains who then lost its peers. Not thread-safe.
class Blame {
 public:
  // `clock` outlives the object.
  explicit Blame(const Clock* clock) : clock_(clock) {}

  // What a rank says of its own failure, beginning with the name of a status code.
  void AddError(RankId rank, const std::string& message);
  // A process that failed.
  void AddExit(const Children::Exit& exit);

  bool any() const { return since_.has_value(); }
  TimePoint since() const { return *since_; }    // of the first failure. Precondition: any()
  bool killed() const { return !killed_.ok(); }  // whether a process is known to have been killed
  // Whether enough was heard for a verdict. After a deadline, all ranks that wait for the same one
  // say so within the time of a step, `last_step`; only who is stuck itself never does.
  bool Settled(Duration last_step) const;

  // What ends the job. `active`: the ranks that train. `stopped`: those that a signal has stopped,
  // and which. Precondition: any().
  Status Verdict(const std::vector<RankId>& active, const std::map<RankId, int>& stopped) const;

 private:
  void NoteTime();

  const Clock* const clock_;
  std::optional<TimePoint> since_;
  std::set<RankId> complained_;
  Status killed_, timed_out_, error_, exited_;
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_BLAME_H_
