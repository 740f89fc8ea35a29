#include "dynatrain/base/clock.h"

#include <thread>

namespace dynatrain {
namespace {

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void SleepUntil(TimePoint deadline) override { std::this_thread::sleep_for(deadline - Now()); }
};

}  // namespace

Clock& MonotonicClock() {
  static SteadyClock clock;
  return clock;
}

}  // namespace dynatrain
