// Deadlines as c10d wants them.
#ifndef DYNATRAIN_BRIDGE_DEADLINE_H_
#define DYNATRAIN_BRIDGE_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include "dynatrain/base/clock.h"

namespace dynatrain::bridge {

// Rounded up to whole milliseconds and at least one: c10d takes zero for "no deadline". At most a
// day.
inline std::chrono::milliseconds ToMillis(Duration timeout) {
  using std::chrono::milliseconds;
  return std::clamp(std::chrono::ceil<milliseconds>(timeout), milliseconds(1),
                    milliseconds(std::chrono::hours(24)));
}

// What is left of a timeout that began when the object was made.
class Deadline {
 public:
  explicit Deadline(Duration timeout) : timeout_(timeout), start_(MonotonicClock().Now()) {}
  Duration left() const { return timeout_ - (MonotonicClock().Now() - start_); }
  bool passed() const { return left() <= Duration::zero(); }
  Duration timeout() const { return timeout_; }

 private:
  Duration timeout_;
  TimePoint start_;
};

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_DEADLINE_H_
