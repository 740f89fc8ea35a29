#include "dynatrain/engine/checker.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/order.h"

namespace dynatrain::engine {
namespace {

Status CheckFingerprints(const std::vector<Program>& programs) {
  uint64_t balance = 0;
  for (const Program& program : programs) {
    balance += program.message_balance;
    if (program.inputs_fingerprint != programs.front().inputs_fingerprint) {
      return Internal("ranks {} and {} compiled from different inputs", programs.front().rank,
                      program.rank);
    }
  }
  return balance == 0 ? Status::Ok()
                      : Internal("the message balance of all ranks is {:x}, not 0", balance);
}

bool SamePieces(const Message& a, const Message& b) {
  return a.bytes == b.bytes &&
         std::equal(a.fragments.begin(), a.fragments.end(), b.fragments.begin(), b.fragments.end(),
                    [](const Fragment& x, const Fragment& y) { return x.piece == y.piece; });
}

Status CheckMessages(const std::vector<Program>& programs) {
  std::map<WireKey, const Message*> sends;
  for (const Program& program : programs) {
    for (int32_t p = 0; const Phase& phase : program.phases) {
      for (const Message& send : phase.sends) {
        if (!sends.emplace(WireKey{program.rank, send.peer, p, send.tag}, &send).second) {
          return Internal("phase {}: rank {} sends two messages to {} with tag {}", p, program.rank,
                          send.peer, send.tag);
        }
      }
      ++p;
    }
  }
  for (const Program& program : programs) {
    for (int32_t p = 0; const Phase& phase : program.phases) {
      for (const Message& receive : phase.receives) {
        const auto it = sends.find(WireKey{receive.peer, program.rank, p, receive.tag});
        if (it == sends.end() || !SamePieces(*it->second, receive)) {
          return Internal("round {}: rank {} expects {} bytes from {} that are not sent so",
                          receive.round, program.rank, receive.bytes, receive.peer);
        }
        sends.erase(it);
      }
      ++p;
    }
  }
  if (sends.empty()) return Status::Ok();
  const WireKey& key = sends.begin()->first;
  return Internal("phase {}: rank {} sends to {} with tag {} and nobody receives", key.phase,
                  key.from, key.to, key.tag);
}

Status CheckMatchings(const std::vector<Program>& programs) {
  std::map<std::tuple<size_t, int32_t, RankId>, RankId> peer_of;
  for (const Program& program : programs) {
    for (size_t p = 0; p < program.phases.size(); ++p) {
      for (const auto* messages : {&program.phases[p].receives, &program.phases[p].sends}) {
        for (const Message& message : *messages) {
          for (const auto& [a, b] :
               {std::pair{program.rank, message.peer}, {message.peer, program.rank}}) {
            const RankId known = peer_of.emplace(std::tuple{p, message.round, a}, b).first->second;
            if (known == b) continue;
            return Internal("phase {} round {}: rank {} meets both {} and {}", p, message.round, a,
                            known, b);
          }
        }
      }
    }
  }
  return Status::Ok();
}

// What a rank relays it has received before, in the order of its actions.
Status CheckRelays(const Program& program) {
  std::set<planner::Piece> received;
  for (const Action& action : ActionsOf(program)) {
    const Phase& phase = program.phases[static_cast<size_t>(action.phase)];
    const auto index = static_cast<size_t>(action.index);
    if (action.kind == Action::Kind::kFinishReceive) {
      for (const Fragment& fragment : phase.receives[index].fragments)
        received.insert(fragment.piece);
    }
    if (action.kind != Action::Kind::kPostSend || !phase.sends[index].relayed) continue;
    for (const Fragment& fragment : phase.sends[index].fragments) {
      if (received.contains(fragment.piece)) continue;
      return Internal("phase {} round {}: rank {} relays tensor {} {} to {} before it has it",
                      action.phase, phase.sends[index].round, program.rank, fragment.piece.tensor,
                      fragment.piece.box.ToString(), phase.sends[index].peer);
    }
  }
  return Status::Ok();
}

// Memory that a phase was the last to send goes only when all its needers have acknowledged it.
Status CheckReleases(const Program& program) {
  std::set<std::pair<int32_t, int32_t>> acknowledged;  // phase, send
  for (const Action& action : ActionsOf(program)) {
    if (action.kind == Action::Kind::kFinishAckReceive)
      acknowledged.insert({action.phase, action.index});
    if (action.kind != Action::Kind::kRelease) continue;
    const Phase& phase = program.phases[static_cast<size_t>(action.phase)];
    for (size_t i = 0; i < phase.sends.size(); ++i) {
      if (acknowledged.contains({action.phase, static_cast<int32_t>(i)})) continue;
      return Internal("phase {}: rank {} gives memory back before rank {} has acknowledged it",
                      action.phase, program.rank, phase.sends[i].peer);
    }
  }
  return Status::Ok();
}

// One rank of the simulated run.
struct Actor {
  const Program* program;
  std::vector<Action> actions;
  size_t next = 0;
  std::deque<WireKey> sends;  // posted and incomplete, in order
  std::deque<WireKey> receives;
};

class Simulation {
 public:
  Simulation(const std::vector<Program>& programs, int32_t max_outstanding)
      : max_outstanding_(static_cast<size_t>(max_outstanding)) {
    for (const Program& program : programs) {
      actors_[program.rank] = Actor{&program, ActionsOf(program), 0, {}, {}};
    }
  }

  Status Run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (auto& [rank, actor] : actors_) progress |= Advance(rank, &actor);
      for (auto& [rank, actor] : actors_) progress |= Transfer(&actor);
    }
    for (const auto& [rank, actor] : actors_) {
      if (actor.next == actor.actions.size()) continue;
      const Action& action = actor.actions[actor.next];
      const Message& message = *WireOpOf(*actor.program, action)->message;
      return Internal("deadlock: rank {} waits for ever in phase {} round {} for rank {}", rank,
                      action.phase, message.round, message.peer);
    }
    return Status::Ok();
  }

 private:
  bool Advance(RankId rank, Actor* actor) {
    const size_t start = actor->next;
    for (; actor->next < actor->actions.size(); ++actor->next) {
      const std::optional<WireOp> op = WireOpOf(*actor->program, actor->actions[actor->next]);
      if (!op) continue;
      const WireKey key = KeyOf(rank, actor->actions[actor->next], *op);
      if (!op->finishes) {
        (op->sending ? actor->sends : actor->receives).push_back(key);
      } else if (!done_.contains(key)) {
        break;
      }
    }
    return actor->next != start;
  }

  bool InFlight(const std::deque<WireKey>& posted, const WireKey& key) const {
    const size_t count = std::min(posted.size(), max_outstanding_);
    return std::find(posted.begin(), posted.begin() + static_cast<std::ptrdiff_t>(count), key) !=
           posted.begin() + static_cast<std::ptrdiff_t>(count);
  }

  // Completes what this rank sends and the other side is ready for.
  bool Transfer(Actor* actor) {
    for (size_t i = 0; i < std::min(actor->sends.size(), max_outstanding_); ++i) {
      const WireKey key = actor->sends[i];
      Actor& receiver = actors_.at(key.to);
      if (!InFlight(receiver.receives, key)) continue;
      actor->sends.erase(actor->sends.begin() + static_cast<std::ptrdiff_t>(i));
      std::erase(receiver.receives, key);
      done_.insert(key);
      return true;
    }
    return false;
  }

  const size_t max_outstanding_;
  std::map<RankId, Actor> actors_;
  std::set<WireKey> done_;
};

}  // namespace

Status CheckPrograms(const std::vector<Program>& programs, int32_t max_outstanding) {
  DT_CHECK(max_outstanding >= 1);
  if (programs.empty()) return Status::Ok();
  DT_RETURN_IF_ERROR(CheckFingerprints(programs));
  DT_RETURN_IF_ERROR(CheckMessages(programs));
  DT_RETURN_IF_ERROR(CheckMatchings(programs));
  for (const Program& program : programs) {
    DT_RETURN_IF_ERROR(CheckRelays(program));
    DT_RETURN_IF_ERROR(CheckReleases(program));
  }
  return Simulation(programs, max_outstanding).Run();
}

}  // namespace dynatrain::engine
