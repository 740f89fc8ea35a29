#include "dynatrain/elastic/sim_world.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "dynatrain/base/hash.h"
#include "dynatrain/elastic/sim_job.h"
#include "dynatrain/elastic/sim_rank.h"
#include "dynatrain/elastic/switch_votes.h"

namespace dynatrain::elastic {

using std::chrono::seconds;

SimJob::SimJob(const SimScript& to_run)
    : script(to_run),
      scheduler(Mix64(script.seed ^ 0x5eed)),
      clock(&scheduler),
      server(&scheduler),
      net(&scheduler, {script.rendezvous, script.silent_deaths}) {
  for (RankId rank = 0; rank < script.num_ranks; ++rank) {
    ranks.push_back(std::make_unique<SimRank>(this, rank));
  }
}

SimJob::~SimJob() = default;

bool SimJob::Dead(RankId rank) const {
  return scheduler.killed(rank) || ranks[static_cast<size_t>(rank)]->ended;
}

std::optional<SimJob::Reduced> SimJob::Reduce(const LayoutInstance& instance, int64_t step,
                                              RankId rank, bool ready) {
  Reduction& reduction = reductions_[{instance.epoch, step}];
  reduction.present.insert(rank);
  reduction.all_ready = reduction.all_ready && ready;
  reduction.end = reduction.end || end_requested;
  const std::vector<RankId> members = instance.map->Ranks();
  const bool met = scheduler.Block(SimScheduler::kNever, [this, &reduction, &members] {
    if (reduction.failed || reduction.present.size() == members.size()) return true;
    return std::ranges::any_of(members, [&](RankId member) {
      return Dead(member) && !reduction.present.contains(member);
    });
  });
  if (!met || reduction.failed || reduction.present.size() < members.size()) {
    reduction.failed = true;
    return std::nullopt;
  }
  return Reduced{reduction.all_ready, reduction.end};
}

void SimJob::Strike(RankId owner) {
  if (owner < 0 || !faults_on_) return;
  const int64_t step = steps_of_rank_[static_cast<size_t>(owner)]++;
  for (size_t i = 0; i < script.faults.size(); ++i) {
    const SimFault& fault = script.faults[i];
    if (struck_[i] || fault.victim != owner || step < fault.at_step) continue;
    struck_[i] = true;
    Apply(fault);
  }
}

void SimJob::Apply(const SimFault& fault) {
  const TimePoint until = scheduler.now() + fault.lasts;
  quiet_from_ = std::max(quiet_from_, until);
  switch (fault.kind) {
    case SimFault::Kind::kKill:
      scheduler.Kill(fault.victim);
      net.Gone(fault.victim);
      break;
    case SimFault::Kind::kFreeze:
      scheduler.Freeze(fault.victim, until);
      break;
    case SimFault::Kind::kStoreError:
      server.FailNext(fault.victim);
      break;
    case SimFault::Kind::kStoreCut:
      server.Cut(fault.victim, until);
      break;
    case SimFault::Kind::kNetworkCut:
      net.Cut(fault.victim, fault.peer, until);
      break;
    case SimFault::Kind::kTransferError:
      net.FailNextTransfer(fault.victim);
      break;
    case SimFault::Kind::kCorruption:
      net.CorruptNextTransfer(fault.victim);
      break;
    case SimFault::Kind::kSetupError:
      net.FailNextSetup(fault.victim);
      break;
    case SimFault::Kind::kAllocationError:
      ranks[static_cast<size_t>(fault.victim)]->fail_allocation = true;
      break;
  }
}

void SimJob::OnWrite(RankId owner, const std::string& key, const std::string& value) {
  // "switch/<id>/decision"
  if (!key.starts_with("switch/") || !key.ends_with("/decision")) return;
  int64_t id = 0;
  std::from_chars(key.data() + 7, key.data() + key.size(), id);
  OnDecision(owner, id, value);
}

void SimJob::OnDecision(RankId owner, int64_t id, const std::string& value) {
  if (value != "commit") {
    ++result.rolled_back;
    result.reasons.push_back(value);
    return;
  }
  const auto from = vps::ParseLayout(specs_[last_committed_], script.num_ranks);
  const auto to = vps::ParseLayout(specs_[id], script.num_ranks);
  std::set<RankId> participants;
  for (const RankId rank : from->Ranks()) participants.insert(rank);
  for (const RankId rank : to->Ranks()) participants.insert(rank);
  for (const RankId rank : participants) {
    const std::string vote = server.Peek(SwitchKey(id, "verified", rank));
    if (vote.empty()) {
      Violation("rank {} commits switch {} without the vote of rank {}", owner, id, rank);
    } else if (const Vote read = Vote::FromJson(vote); !read.error.empty()) {
      Violation("rank {} commits switch {} though rank {}: {}", owner, id, rank, read.error);
    }
  }
  ++result.committed;
  if (script.mode == engine::Mode::kStream) ++result.streamed;
  last_committed_ = id;
}

void SimJob::Ask(Store& store, const std::string& spec) {
  specs_[++last_id_] = spec;
  const auto id = RequestSwitch(store, spec, 0);
  if (!id.ok() || *id != last_id_) Violation("switch {} could not be asked for", last_id_);
}

bool SimJob::AwaitDecision(int64_t id, Duration timeout) {
  return scheduler.Block(scheduler.now() + timeout, [this, id] { return !DecisionOf(id).empty(); });
}

void SimJob::Launch() {
  const auto store = server.Connect(-1);
  for (const std::string& spec : script.switches) {
    Ask(*store, spec);
    if (!script.overlapping_requests) AwaitDecision(last_id_, seconds(25));
  }
  AwaitDecision(last_id_, seconds(25));
  faults_on_ = false;
  scheduler.SetImpatience(0, {});
  server.Disarm();
  net.Disarm();
  for (auto& rank : ranks) rank->fail_allocation = false;
  TryAgain(*store);
  AwaitReports();
  end_requested = true;
  // Ranks that are idle learn it from the store, the others from their reduction.
  if (!EndJob(*store, "the end").ok()) Violation("the job could not be ended");
}

// A job that ends with a report owed would lose it.
void SimJob::AwaitReports() {
  scheduler.Block(scheduler.now() + seconds(40), [this] {
    for (int64_t id = 1; id <= last_id_; ++id) {
      if (!reports.contains(id)) return !AllLive();
    }
    return true;
  });
}

bool SimJob::AllLive() const {
  for (RankId rank = 0; rank < script.num_ranks; ++rank) {
    if (Dead(rank) || server.Lost(rank)) return false;
  }
  return true;
}

// If all ranks live: what was rolled back commits now that nothing fails.
void SimJob::TryAgain(Store& store) {
  const auto settled = [this] {
    if (scheduler.now() < quiet_from_) return !AllLive();
    for (int64_t id = 1; id <= last_id_; ++id) {
      if (DecisionOf(id).empty()) return !AllLive();
    }
    return true;
  };
  scheduler.Block(std::max(scheduler.now(), quiet_from_), [this] { return !AllLive(); });
  scheduler.Block(scheduler.now() + seconds(20), settled);
  if (!AllLive()) return;
  for (int64_t id = 1; id <= last_id_; ++id) {
    if (DecisionOf(id).empty()) Violation("switch {} is undecided though nobody died", id);
  }
  const std::string decision = DecisionOf(last_id_);
  const std::string spec = specs_[last_id_];
  const auto layout = vps::ParseLayout(spec, script.num_ranks);
  if (decision == "commit" || spec == specs_[last_committed_] || !layout.ok() ||
      !layout->Validate(3, script.num_ranks).ok()) {
    return;
  }
  Ask(store, spec);
  AwaitDecision(last_id_, seconds(30));
  if (DecisionOf(last_id_) != "commit" && AllLive()) {
    Violation("switch {} was off ('{}') and tried again gives '{}'", last_id_ - 1, decision,
              DecisionOf(last_id_));
  }
}

int64_t SimJob::LostSwitch() const {
  for (int64_t id = 1; id <= last_id_; ++id) {
    const std::string outcome = server.Peek(SwitchKey(id, "outcome"));
    if (!outcome.empty() && Settlement::FromText(outcome).outcome == Outcome::kLost) return id;
  }
  return 0;
}

void SimJob::CheckLoss() {
  const int64_t id = LostSwitch();
  ++result.lost;
  if (script.mode != engine::Mode::kStream) Violation("switch {} is lost in mode keep", id);
  if (!DecisionOf(id).starts_with("abort")) Violation("switch {} is committed and lost", id);
  if (script.faults.empty() && script.impatience == 0)
    Violation("switch {} is lost and nothing failed", id);
  // Bad bytes and broken connections take no box from everybody's memory.
  const bool harmless = std::ranges::all_of(script.faults, [](const SimFault& fault) {
    return fault.kind == SimFault::Kind::kCorruption ||
           fault.kind == SimFault::Kind::kTransferError;
  });
  const auto settled = Settlement::FromText(server.Peek(SwitchKey(id, "outcome")));
  if (harmless && script.impatience == 0 && !settled.lost.empty())
    Violation("switch {}: nobody died, and yet {} boxes are lost", id, settled.lost.size());
}

void SimJob::CheckEnd() {
  bool deaths = false;
  for (RankId rank = 0; rank < script.num_ranks; ++rank) {
    deaths = deaths || scheduler.killed(rank) || server.Lost(rank) ||
             ranks[static_cast<size_t>(rank)]->taken_for_dead;
    result.steps_of_rank[rank] = steps_of_rank_[static_cast<size_t>(rank)];
    if (scheduler.killed(rank) || server.Lost(rank)) ++result.deaths;
    for (const auto& [id, outcome] : ranks[static_cast<size_t>(rank)]->outcomes) {
      if (outcome == Outcome::kCommitted && DecisionOf(id) != "commit")
        Violation("rank {}: {} committed, decision '{}'", rank, id, DecisionOf(id));
    }
  }
  for (const auto& [id, count] : reports) {
    if (count > 1) Violation("switch {} is reported {} times", id, count);
  }
  if (LostSwitch() != 0) CheckLoss();
  if (deaths || LostSwitch() != 0) return;
  for (int64_t id = 1; id <= last_id_; ++id) {
    if (DecisionOf(id).empty()) Violation("switch {} is never decided", id);
    if (reports[id] != 1) Violation("switch {} is reported {} times", id, reports[id]);
  }
  for (const auto& [key, value] : server.values()) {
    if (key == "switch/last_id" || key == "job/end" || key.ends_with("/request") ||
        key.ends_with("/decision") || key.ends_with("/outcome")) {
      continue;
    }
    Violation("{} is left in the store", key);
  }
}

SimResult SimJob::Run() {
  specs_[0] = script.first;
  scheduler.SetImpatience(script.impatience, script.jump);
  server.SetLatency(script.store_latency);
  scheduler.OnStep([this](RankId owner) { Strike(owner); });
  server.OnWrite([this](RankId owner, const std::string& key, const std::string& value) {
    OnWrite(owner, key, value);
  });
  for (auto& rank : ranks) {
    const auto id = static_cast<RankId>(&rank - ranks.data());
    scheduler.Spawn(id, [&rank] { rank->Run(); });
  }
  scheduler.Spawn(-1, [this] { Launch(); });
  const bool ended = scheduler.Run(seconds(400), 400'000);
  if (!ended) Violation("{}", scheduler.hang());
  if (ended) CheckEnd();
  result.steps = scheduler.steps();
  return std::move(result);
}

SimResult RunSim(const SimScript& script) { return SimJob(script).Run(); }

}  // namespace dynatrain::elastic
