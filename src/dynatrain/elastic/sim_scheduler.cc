#include "dynatrain/elastic/sim_scheduler.h"

#include <ucontext.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "dynatrain/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace dynatrain::elastic {
namespace {

constexpr size_t kStackBytes = size_t{1} << 19;
constexpr RankId kMostRanks = 64;

// Stacks are reused by the next run: touching fresh pages costs more than a run.
std::vector<std::unique_ptr<std::byte[]>>& StackPool() {
  static thread_local std::vector<std::unique_ptr<std::byte[]>> pool;
  return pool;
}

std::unique_ptr<std::byte[]> TakeStack() {
  auto& pool = StackPool();
  if (pool.empty()) return std::unique_ptr<std::byte[]>(new std::byte[kStackBytes]);
  auto stack = std::move(pool.back());
  pool.pop_back();
  return stack;
}

size_t Slot(RankId owner) {
  DT_CHECK(owner >= -1 && owner < kMostRanks);
  return static_cast<size_t>(owner + 1);
}

}  // namespace

struct SimScheduler::Fiber {
  RankId owner = -1;
  std::function<void()> body;
  bool done = false;
  bool blocked = false;
  TimePoint deadline = kNever;
  std::function<bool()> condition;

  ucontext_t context{};
  std::unique_ptr<std::byte[]> stack;
  // What the sanitizers know of this stack.
  void* fake_stack = nullptr;
  const void* stack_bottom = nullptr;
  size_t stack_bytes = 0;
  void* tsan_fiber = nullptr;
};

namespace {

template <class Fiber>
void Switch(Fiber* from, Fiber* to, [[maybe_unused]] bool from_ends) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(from_ends ? nullptr : &from->fake_stack, to->stack_bottom,
                                 to->stack_bytes);
#elif defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to->tsan_fiber, 0);
#endif
  swapcontext(&from->context, &to->context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

}  // namespace

SimScheduler::SimScheduler(uint64_t seed)
    : random_(seed),
      main_(std::make_unique<Fiber>()),
      killed_(kMostRanks + 1, false),
      frozen_until_(kMostRanks + 1, TimePoint::min()) {
#if defined(__SANITIZE_THREAD__)
  main_->tsan_fiber = __tsan_get_current_fiber();
#endif
}

SimScheduler::~SimScheduler() {
  for (auto& fiber : fibers_) {
    DT_CHECK_MSG(fiber->done, "a simulation ends before its fibers");
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(fiber->tsan_fiber);
#endif
    StackPool().push_back(std::move(fiber->stack));
  }
}

void SimScheduler::Entry(unsigned low, unsigned high) {
  auto* self = reinterpret_cast<SimScheduler*>((static_cast<uintptr_t>(high) << 32) |
                                               static_cast<uintptr_t>(low));
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->main_->stack_bottom, &self->main_->stack_bytes);
#endif
  Fiber* fiber = self->running_;
  fiber->body();
  fiber->body = nullptr;
  fiber->done = true;
  Switch(fiber, self->main_.get(), true);
}

int SimScheduler::Spawn(RankId owner, std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->owner = owner;
  fiber->body = std::move(body);
  fiber->stack = TakeStack();
  fiber->stack_bottom = fiber->stack.get();
  fiber->stack_bytes = kStackBytes;
#if defined(__SANITIZE_THREAD__)
  fiber->tsan_fiber = __tsan_create_fiber(0);
#endif
  DT_CHECK(getcontext(&fiber->context) == 0);
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(this);
  // makecontext passes ints.
  makecontext(&fiber->context, reinterpret_cast<void (*)()>(&SimScheduler::Entry), 2,
              static_cast<unsigned>(address & 0xffffffffU), static_cast<unsigned>(address >> 32));
  live_.push_back(fiber.get());
  fibers_.push_back(std::move(fiber));
  return static_cast<int>(fibers_.size()) - 1;
}

bool SimScheduler::done(int fiber) const { return fibers_[static_cast<size_t>(fiber)]->done; }

RankId SimScheduler::owner() const {
  DT_CHECK(running_);
  return running_->owner;
}

bool SimScheduler::killed(RankId owner) const { return killed_[Slot(owner)]; }
void SimScheduler::Kill(RankId owner) { killed_[Slot(owner)] = true; }
void SimScheduler::Freeze(RankId owner, TimePoint until) {
  TimePoint& frozen = frozen_until_[Slot(owner)];
  frozen = std::max(frozen, until);
}

void SimScheduler::SetImpatience(int64_t one_in, Duration jump) {
  impatience_ = one_in;
  jump_ = jump;
}

bool SimScheduler::Runnable(const Fiber& fiber) const {
  if (killed(fiber.owner)) return true;
  if (now_ < frozen_until_[Slot(fiber.owner)]) return false;
  return !fiber.blocked || now_ >= fiber.deadline || fiber.condition();
}

SimScheduler::Fiber* SimScheduler::Choose() {
  // Looks from a random place on: nearly uniform, and most conditions need not be asked.
  const size_t count = live_.size();
  const auto start = static_cast<size_t>(random_.Between(0, static_cast<int64_t>(count) - 1));
  for (size_t i = 0; i < count; ++i) {
    Fiber* fiber = live_[(start + i) % count];
    if (Runnable(*fiber)) return fiber;
  }
  return nullptr;
}

bool SimScheduler::AdvanceTime() {
  TimePoint next = kNever;
  for (const Fiber* fiber : live_) {
    const TimePoint frozen = frozen_until_[Slot(fiber->owner)];
    TimePoint at = fiber->blocked ? fiber->deadline : now_;
    // A condition that is met already runs when the frost ends.
    if (fiber->blocked && frozen > now_ && fiber->condition()) at = now_;
    next = std::min(next, std::max(at, frozen));
  }
  if (next == kNever) return false;
  now_ = std::max(now_, next);
  return true;
}

bool SimScheduler::Run(TimePoint latest, int64_t most_steps) {
  while (!live_.empty()) {
    Fiber* fiber = Choose();
    if (!fiber) {
      if (!AdvanceTime()) EndHung("nobody can run");
      continue;
    }
    if (hang_.empty() && now_ > latest) EndHung(fmt::format("{} virtual s", ToSeconds(now_)));
    if (hang_.empty() && steps_ > most_steps) EndHung(fmt::format("{} steps", steps_));
    DT_CHECK_MSG(steps_ < 2 * most_steps, "killed ranks do not end");
    ++steps_;
    now_ += std::chrono::microseconds(random_.Between(0, 20));
    if (impatience_ > 0 && random_.OneIn(impatience_)) {
      now_ += Duration(random_.Between(0, jump_.count()));
    }
    if (on_step_) on_step_(fiber->owner);
    if (Runnable(*fiber)) StepInto(fiber);
  }
  return hang_.empty();
}

void SimScheduler::StepInto(Fiber* fiber) {
  running_ = fiber;
  Switch(main_.get(), fiber, false);
  running_ = nullptr;
  if (!fiber->done) return;
  std::erase(live_, fiber);
}

void SimScheduler::GiveWay() { Switch(running_, main_.get(), false); }

void SimScheduler::EndHung(std::string why) {
  hang_ = "hang: " + std::move(why);
  for (RankId owner = -1; owner < kMostRanks; ++owner) Kill(owner);
}

void SimScheduler::Yield() {
  if (!running_) return;
  GiveWay();
}

bool SimScheduler::Block(TimePoint deadline, std::function<bool()> condition) {
  Fiber* fiber = running_;
  if (!fiber) return condition();
  fiber->condition = std::move(condition);
  fiber->deadline = deadline;
  fiber->blocked = true;
  GiveWay();
  fiber->blocked = false;
  const bool met = !killed(fiber->owner) && fiber->condition();
  fiber->condition = nullptr;
  return met;
}

}  // namespace dynatrain::elastic
