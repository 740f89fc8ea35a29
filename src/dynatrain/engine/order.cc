#include "dynatrain/engine/order.h"

#include <algorithm>
#include <optional>

namespace dynatrain::engine {
namespace {

bool IsPowerOfTwo(int32_t n) { return (n & (n - 1)) == 0; }

// The messages of one round of one rank.
struct Step {
  int32_t round;
  std::optional<int32_t> receive;
  std::optional<int32_t> send;
};

std::vector<Step> StepsOf(const Phase& phase) {
  std::vector<Step> steps;
  size_t r = 0;
  size_t s = 0;
  while (r < phase.receives.size() || s < phase.sends.size()) {
    Step step{INT32_MAX, {}, {}};
    if (r < phase.receives.size()) step.round = phase.receives[r].round;
    if (s < phase.sends.size()) step.round = std::min(step.round, phase.sends[s].round);
    if (r < phase.receives.size() && phase.receives[r].round == step.round) {
      step.receive = static_cast<int32_t>(r++);
    }
    if (s < phase.sends.size() && phase.sends[s].round == step.round) {
      step.send = static_cast<int32_t>(s++);
    }
    steps.push_back(step);
  }
  return steps;
}

void AppendPhase(int32_t phase_index, const Phase& phase, int32_t window, std::vector<Action>* actions) {
  using Kind = Action::Kind;
  const std::vector<Step> steps = StepsOf(phase);
  const auto count = static_cast<int32_t>(steps.size());
  const auto add = [&](Kind kind, int32_t index, int32_t slot) {
    actions->push_back({kind, phase_index, index, slot});
  };
  const auto finish = [&](int32_t k) {
    const Step& step = steps[static_cast<size_t>(k)];
    if (step.receive) add(Kind::kFinishReceive, *step.receive, k % window);
    if (step.send) add(Kind::kFinishSend, *step.send, k % window);
  };
  const int32_t last_before_wait = std::min(window, count) - 1;
  for (int32_t k = 0; k < count; ++k) {
    const Step& step = steps[static_cast<size_t>(k)];
    if (step.receive) add(Kind::kPostReceive, *step.receive, k % window);
    if (step.send) add(Kind::kPostSend, *step.send, k % window);
    if (k == last_before_wait) add(Kind::kCopies, 0, 0);
    if (k >= window - 1) finish(k - window + 1);
  }
  if (count == 0) add(Kind::kCopies, 0, 0);
  for (int32_t k = std::max(0, count - window + 1); k < count; ++k) finish(k);
  add(Kind::kVerify, 0, 0);
}

}  // namespace

int32_t NumRounds(int32_t n) { return n; }

int32_t RoundOf(int32_t a, int32_t b, int32_t n) {
  DT_CHECK(a != b && a >= 0 && b >= 0 && a < n && b < n);
  if (IsPowerOfTwo(n)) return a ^ b;
  const int32_t even = n + n % 2;
  const int32_t fixed = even - 1;  // meets everybody else's gap
  if (a == fixed || b == fixed) {
    const int32_t other = a == fixed ? b : a;
    return static_cast<int32_t>((int64_t{2} * other) % fixed);
  }
  return static_cast<int32_t>((int64_t{a} + b) % fixed);
}

std::vector<Action> ActionsOf(const Program& program) {
  std::vector<Action> actions;
  const auto phases = static_cast<int32_t>(program.phases.size());
  for (int32_t p = 0; p < phases; ++p) {
    AppendPhase(p, program.phases[static_cast<size_t>(p)], std::max(1, program.window), &actions);
  }
  return actions;
}

}  // namespace dynatrain::engine
