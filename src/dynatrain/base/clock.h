// Time as a value that is passed in, so that protocols run in virtual time under test.
#ifndef DYNATRAIN_BASE_CLOCK_H_
#define DYNATRAIN_BASE_CLOCK_H_

#include <chrono>

namespace dynatrain {

using Duration = std::chrono::nanoseconds;

// A point on a monotonic clock, as the time since that clock's own start.
using TimePoint = std::chrono::nanoseconds;

inline double ToSeconds(Duration d) { return std::chrono::duration<double>(d).count(); }

// SEAM. Any thread may call any method.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  virtual void SleepUntil(TimePoint deadline) = 0;
};

// CLOCK_MONOTONIC: one time line for all processes of a host. Lives for the whole process.
Clock& MonotonicClock();

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_CLOCK_H_
