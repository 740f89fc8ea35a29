// Switches that were asked for and have no report yet, as they are told: to who asks (control.h) and,
// once one waits for some rank, unasked.
#ifndef DYNATRAIN_APPS_PENDING_H_
#define DYNATRAIN_APPS_PENDING_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/types.h"
#include "dynatrain/elastic/switch_progress.h"

namespace dynatrain::apps {

// A PENDING of control.h.
nlohmann::json PendingJson(const elastic::PendingSwitch& pending);
// "switch 3 to tp=2,dp=2: preparing, waits for ranks 1, 3", of a PENDING.
std::string PendingText(const nlohmann::json& pending);

// When to tell unasked that a switch waits: once the same votes of the same stage have been missing for
// 5 s, and again whenever that time has doubled. Not thread-safe.
class PendingWatch {
 public:
  // `clock` outlives the object.
  explicit PendingWatch(const Clock* clock) : clock_(clock) {}

  struct Notice {
    elastic::PendingSwitch pending;
    double seconds = 0;  // for so long it has waited for just these
    // `stopped`: ranks that a signal has stopped, and which; those that are not waited for do not
    // matter. A PENDING with "seconds", and "stopped": [ranks].
    nlohmann::json ToJson(const std::map<RankId, int>& stopped) const;
    std::string ToText(const std::map<RankId, int>& stopped) const;
  };
  // Of all pending ones now, in order (elastic::ReadPending): what is due. To be called often.
  std::optional<Notice> Look(const std::vector<elastic::PendingSwitch>& pending);

 private:
  const Clock* const clock_;
  std::optional<elastic::PendingSwitch> last_;  // what was waited for at the last look
  TimePoint since_ = {};
  Duration due_ = {};  // after since_
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_PENDING_H_
