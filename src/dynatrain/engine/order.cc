#include "dynatrain/engine/order.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace dynatrain::engine {
namespace {

bool IsPowerOfTwo(int32_t n) { return (n & (n - 1)) == 0; }

// The messages of one round of one rank.
struct Step {
  int32_t phase;
  int32_t round;
  std::optional<int32_t> receive;
  std::optional<int32_t> send;
};

enum class Hop { kFirst, kRelayed };

bool Relays(const Message& message) { return message.relayed; }

// Relayed messages are the last of their phase.
void AppendSteps(int32_t index, const Phase& phase, Hop hop, std::vector<Step>* steps) {
  const auto first_hops = [hop](const std::vector<Message>& messages) {
    const auto count = std::ranges::find_if(messages, Relays) - messages.begin();
    return std::pair(hop == Hop::kFirst ? size_t{0} : static_cast<size_t>(count),
                     hop == Hop::kFirst ? static_cast<size_t>(count) : messages.size());
  };
  auto [r, r_end] = first_hops(phase.receives);
  auto [s, s_end] = first_hops(phase.sends);
  while (r < r_end || s < s_end) {
    Step step{index, INT32_MAX, {}, {}};
    if (r < r_end) step.round = phase.receives[r].round;
    if (s < s_end) step.round = std::min(step.round, phase.sends[s].round);
    if (r < r_end && phase.receives[r].round == step.round) {
      step.receive = static_cast<int32_t>(r++);
    }
    if (s < s_end && phase.sends[s].round == step.round) {
      step.send = static_cast<int32_t>(s++);
    }
    steps->push_back(step);
  }
}

// Appends passes over steps, with a bounded number of steps between post and finish.
class ActionList {
 public:
  using Kind = Action::Kind;

  explicit ActionList(const Program& program)
      : program_(program), window_(std::max(1, program.window)) {}

  // All messages, copies and checks of phases [first, last), which share one window up to each
  // phase that relays.
  void AddData(int32_t first, int32_t last) {
    for (int32_t p = first; p < last; ++p) {
      const Phase& phase = PhaseAt(p);
      const bool relays =
          std::ranges::any_of(phase.sends, Relays) || std::ranges::any_of(phase.receives, Relays);
      if (!relays && p + 1 < last) continue;
      AddPasses(first, p + 1);
      first = p + 1;
    }
  }

  // One phase between taking its memory and giving it back.
  void AddStreamedPhase(int32_t phase) {
    Add(phase, Kind::kTake);
    AddData(phase, phase + 1);
    AddAcknowledgements(phase);
    Add(phase, Kind::kRelease);
  }

  std::vector<Action> Finish() { return std::move(actions_); }

 private:
  const Phase& PhaseAt(int32_t phase) const { return program_.phases[static_cast<size_t>(phase)]; }

  // First hops of phases [first, last), which share one window, then what the last one relays.
  void AddPasses(int32_t first, int32_t last) {
    std::vector<Step> steps;
    for (int32_t p = first; p < last; ++p) AppendSteps(p, PhaseAt(p), Hop::kFirst, &steps);
    const auto count = static_cast<int32_t>(steps.size());
    const int32_t last_before_wait = std::min(window_, count) - 1;
    const auto add_copies = [&] {
      for (int32_t p = first; p < last; ++p) Add(p, Kind::kCopies);
    };
    if (count == 0) add_copies();
    int32_t verified = first;  // phases below are
    const auto post_only = [&](const Step& step, int32_t k) {
      if (step.receive) Add(step.phase, Kind::kPostReceive, *step.receive, k % window_);
      if (step.send) Add(step.phase, Kind::kPostSend, *step.send, k % window_);
    };
    const auto post = [&](const Step& step, int32_t k) {
      post_only(step, k);
      if (k == last_before_wait) add_copies();  // while the first messages travel
    };
    const auto finish = [&](const Step& step, int32_t k) {
      for (; verified < step.phase; ++verified) Add(verified, Kind::kReceived);
      if (step.receive) Add(step.phase, Kind::kFinishReceive, *step.receive, k % window_);
      if (step.send) Add(step.phase, Kind::kFinishSend, *step.send, k % window_);
    };
    Run(steps, post, finish);
    steps.clear();
    AppendSteps(last - 1, PhaseAt(last - 1), Hop::kRelayed, &steps);
    Run(steps, post_only, finish);
    for (; verified < last; ++verified) Add(verified, Kind::kReceived);
  }

  void Add(int32_t phase, Kind kind, int32_t index = 0, int32_t slot = 0) {
    actions_.push_back({kind, phase, index, slot});
  }

  void AddAcknowledgements(int32_t phase) {
    std::vector<Step> steps;
    AppendSteps(phase, PhaseAt(phase), Hop::kFirst, &steps);
    AppendSteps(phase, PhaseAt(phase), Hop::kRelayed, &steps);
    const auto post = [&](const Step& step, int32_t k) {
      if (step.send) Add(phase, Kind::kPostAckReceive, *step.send, k % window_);
      if (step.receive) Add(phase, Kind::kPostAckSend, *step.receive, k % window_);
    };
    const auto finish = [&](const Step& step, int32_t k) {
      if (step.send) Add(phase, Kind::kFinishAckReceive, *step.send, k % window_);
      if (step.receive) Add(phase, Kind::kFinishAckSend, *step.receive, k % window_);
    };
    Run(steps, post, finish);
  }

  template <class Post, class Finish>
  void Run(const std::vector<Step>& steps, const Post& post, const Finish& finish) const {
    const auto count = static_cast<int32_t>(steps.size());
    for (int32_t k = 0; k < count; ++k) {
      post(steps[static_cast<size_t>(k)], k);
      if (k >= window_ - 1) finish(steps[static_cast<size_t>(k - window_ + 1)], k - window_ + 1);
    }
    for (int32_t k = std::max(0, count - window_ + 1); k < count; ++k)
      finish(steps[static_cast<size_t>(k)], k);
  }

  const Program& program_;
  const int32_t window_;
  std::vector<Action> actions_;
};

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

RoundTable::RoundTable(std::vector<RankId> ranks, const planner::Topology& topology)
    : ranks_(std::move(ranks)) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const bool same_node = i > 0 && topology.NodeOf(ranks_[i]) == topology.NodeOf(ranks_[i - 1]);
    if (!same_node) ++num_nodes_;
    places_.push_back({num_nodes_ - 1, same_node ? places_.back().local + 1 : 0});
    largest_node_ = std::max(largest_node_, places_.back().local + 1);
  }
}

Result<RoundTable::Place> RoundTable::PlaceOf(RankId rank) const {
  const auto it = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (it != ranks_.end() && *it == rank) return places_[static_cast<size_t>(it - ranks_.begin())];
  return InvalidArgument("rank {} is not among the {} ranks that take part", rank, ranks_.size());
}

Result<int32_t> RoundTable::RoundOf(RankId a, RankId b) const {
  DT_ASSIGN_OR_RETURN(const Place x, PlaceOf(a));
  DT_ASSIGN_OR_RETURN(const Place y, PlaceOf(b));
  if (x.node == y.node) return engine::RoundOf(x.local, y.local, largest_node_);
  const int32_t node_round = 1 + engine::RoundOf(x.node, y.node, num_nodes_);
  const int32_t local_round =
      IsPowerOfTwo(largest_node_) ? x.local ^ y.local : (x.local + y.local) % largest_node_;
  return node_round * largest_node_ + local_round;
}

Result<int32_t> RoundTable::RelayRoundOf(RankId a, RankId b) const {
  DT_ASSIGN_OR_RETURN(const Place x, PlaceOf(a));
  DT_ASSIGN_OR_RETURN(const Place y, PlaceOf(b));
  if (x.node != y.node)
    return InvalidArgument("ranks {} and {} are on two nodes; relays stay inside one", a, b);
  return (num_nodes_ + 1) * largest_node_ + engine::RoundOf(x.local, y.local, largest_node_);
}

std::optional<WireOp> WireOpOf(const Program& program, const Action& action) {
  using Kind = Action::Kind;
  const Phase& phase = program.phases[static_cast<size_t>(action.phase)];
  const auto index = static_cast<size_t>(action.index);
  const auto data = [](const Message& message, bool sending, bool finishes) {
    return WireOp{&message, sending, finishes, TagOf(message, Wire::kData)};
  };
  const auto ack = [](const Message& message, bool sending, bool finishes) {
    return WireOp{&message, sending, finishes, TagOf(message, Wire::kAcknowledgement)};
  };
  switch (action.kind) {
    case Kind::kPostReceive:
      return data(phase.receives[index], false, false);
    case Kind::kPostSend:
      return data(phase.sends[index], true, false);
    case Kind::kFinishReceive:
      return data(phase.receives[index], false, true);
    case Kind::kFinishSend:
      return data(phase.sends[index], true, true);
    case Kind::kPostAckSend:
      return ack(phase.receives[index], true, false);
    case Kind::kPostAckReceive:
      return ack(phase.sends[index], false, false);
    case Kind::kFinishAckSend:
      return ack(phase.receives[index], true, true);
    case Kind::kFinishAckReceive:
      return ack(phase.sends[index], false, true);
    case Kind::kTake:
    case Kind::kCopies:
    case Kind::kReceived:
    case Kind::kRelease:
      return std::nullopt;
  }
  return std::nullopt;
}

WireKey KeyOf(RankId rank, const Action& action, const WireOp& op) {
  const RankId peer = op.message->peer;
  return {.from = op.sending ? rank : peer,
          .to = op.sending ? peer : rank,
          .phase = action.phase,
          .tag = op.tag};
}

std::vector<Action> ActionsOf(const Program& program) {
  ActionList list(program);
  const auto phases = static_cast<int32_t>(program.phases.size());
  if (program.mode == Mode::kKeep) {
    list.AddData(0, phases);
  } else {
    for (int32_t p = 0; p < phases; ++p) list.AddStreamedPhase(p);
  }
  return list.Finish();
}

}  // namespace dynatrain::engine
