// A clock that stands still until a test sets it.
#ifndef DYNATRAIN_APPS_TESTING_CLOCK_H_
#define DYNATRAIN_APPS_TESTING_CLOCK_H_

#include "dynatrain/base/clock.h"

namespace dynatrain::apps {

class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return now; }
  void SleepUntil(TimePoint deadline) override { now = deadline; }
  TimePoint now{};
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_TESTING_CLOCK_H_
