// SimScheduler: many ranks in one OS thread, one running at a time, in an order and in a virtual
// time drawn from a seed. The same seed gives the same run, to the last step.
//
// Every rank has one or more fibers. A fiber gives way only where it says so: Yield and Block. Time
// goes on a little with every step, and to the next deadline when nobody can run; with
// `impatience`, now and then also while others could run, which is what a slow machine looks like.
#ifndef DYNATRAIN_ELASTIC_SIM_SCHEDULER_H_
#define DYNATRAIN_ELASTIC_SIM_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/random.h"
#include "dynatrain/base/types.h"

namespace dynatrain::elastic {

// Not thread-safe; all of it runs on the thread that calls Run.
class SimScheduler {
 public:
  static constexpr TimePoint kNever = TimePoint::max();

  explicit SimScheduler(uint64_t seed);
  ~SimScheduler();
  SimScheduler(const SimScheduler&) = delete;
  SimScheduler& operator=(const SimScheduler&) = delete;

  // A new fiber of `owner` (a rank, or -1 for the launcher). May be called from a fiber.
  int Spawn(RankId owner, std::function<void()> body);
  bool done(int fiber) const;

  // Runs until all fibers have ended. False: nobody could run any more, or the bounds were passed;
  // then hang() says so, every rank was killed, and all fibers have ended all the same.
  bool Run(TimePoint latest, int64_t most_steps);
  const std::string& hang() const { return hang_; }

  // From a fiber. Yield: others may run now. Block: until `condition`, true; or until `deadline` or
  // the death of this fiber's rank, false. Outside of fibers both return at once.
  void Yield();
  bool Block(TimePoint deadline, std::function<bool()> condition);

  // Operations of a killed rank return at once and must have no effect; its fibers run to their
  // end.
  void Kill(RankId owner);
  bool killed(RankId owner) const;
  // No fiber of `owner` runs before `until`.
  void Freeze(RankId owner, TimePoint until);

  // One step in `one_in` (0: none) lets up to `jump` pass.
  void SetImpatience(int64_t one_in, Duration jump);

  // Called before each step with the owner that is about to run; for faults that strike at a step.
  void OnStep(std::function<void(RankId)> hook) { on_step_ = std::move(hook); }

  TimePoint now() const { return now_; }
  int64_t steps() const { return steps_; }
  RankId owner() const;  // of the running fiber
  Random& random() { return random_; }

 private:
  struct Fiber;

  bool Runnable(const Fiber& fiber) const;
  Fiber* Choose();
  bool AdvanceTime();
  void StepInto(Fiber* fiber);
  void GiveWay();
  void EndHung(std::string why);
  static void Entry(unsigned low, unsigned high);

  Random random_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> live_;
  Fiber* running_ = nullptr;
  std::unique_ptr<Fiber> main_;
  std::vector<bool> killed_;             // by rank
  std::vector<TimePoint> frozen_until_;  // by rank
  TimePoint now_{};
  int64_t steps_ = 0;
  int64_t impatience_ = 0;
  Duration jump_{};
  std::function<void(RankId)> on_step_;
  std::string hang_;
};

// The scheduler's time as a Clock.
class SimClock final : public Clock {
 public:
  explicit SimClock(SimScheduler* scheduler) : scheduler_(scheduler) {}
  TimePoint Now() const override { return scheduler_->now(); }
  void SleepUntil(TimePoint deadline) override {
    scheduler_->Block(deadline, [] { return false; });
  }

 private:
  SimScheduler* const scheduler_;
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SIM_SCHEDULER_H_
