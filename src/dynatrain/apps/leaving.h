// Leaving: how long ranks may take to end, once the job has.
#ifndef DYNATRAIN_APPS_LEAVING_H_
#define DYNATRAIN_APPS_LEAVING_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/types.h"

namespace dynatrain::apps {

// A rank ends of itself only at the end of the job. Then the others have 30 s: calling off a switch
// in preparation and waiting for the reports of others take them 20 s at most. One that a signal has
// stopped does nothing in that time, and has 5 s. Not thread-safe.
class Leaving {
 public:
  // `clock` outlives the object.
  explicit Leaving(const Clock* clock) : clock_(clock) {}

  // A rank has ended of itself.
  void OneLeft();

  struct Late {
    RankId rank = 0;
    std::string why;  // "rank 3 was stopped by signal 19 (Stopped) and did not end within ..."
  };
  // Those of `running` whose time is over. `stopped`: those that a signal has stopped, and which.
  std::vector<Late> LateOnes(const std::vector<RankId>& running,
                             const std::map<RankId, int>& stopped) const;

 private:
  const Clock* const clock_;
  std::optional<TimePoint> first_left_;
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_LEAVING_H_
