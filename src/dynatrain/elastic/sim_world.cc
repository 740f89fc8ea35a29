#include "dynatrain/elastic/sim_world.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "dynatrain/base/hash.h"
#include "dynatrain/elastic/sim_oracle.h"
#include "dynatrain/elastic/switch_votes.h"

namespace dynatrain::elastic {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using What = BoundaryResult::What;

class World;

// One rank: its loop, its host, and what is known of it.
class SimRank final : public Host {
 public:
  SimRank(World* world, RankId rank) : world_(*world), rank_(rank) {}

  void Run();

  Status CheckLayout(const vps::Layout& layout) override;
  Result<std::shared_ptr<void>> Prepare(const LayoutInstance& instance) override;
  std::string JobState() override;

  bool fail_allocation = false;
  bool ended = false;                   // Run has returned
  bool leaving = false;                 // its agent is being stopped
  std::map<int64_t, Outcome> outcomes;  // by epoch or id, as the agent told them

 private:
  struct Token;

  std::shared_ptr<LayoutInstance> FirstInstance();
  bool Step();
  bool WaitIdle();
  bool Take(const BoundaryResult& result, int64_t before);
  // The last one that this rank built a transport for.
  int64_t LastSwitch() const;
  void CheckMayTrain();
  void Enter();
  // An idle rank's own idea of the step, never to be heard of.
  int64_t Forgotten() const { return -1000 - rank_; }
  void CheckState(std::string_view when);
  void Train();

  World& world_;
  const RankId rank_;
  std::unique_ptr<SwitchAgent> agent_;
  std::vector<vps::Shard> shards_;  // of the current instance
  int64_t step_ = 0;                // last finished step
  bool moved_ = false;              // has told its job state since it last trained
};

class World {
 public:
  explicit World(const SimScript& to_run)
      : script(to_run),
        scheduler(Mix64(script.seed ^ 0x5eed)),
        clock(&scheduler),
        server(&scheduler),
        net(&scheduler, {script.rendezvous, script.silent_deaths}) {
    for (RankId rank = 0; rank < script.num_ranks; ++rank) {
      ranks.push_back(std::make_unique<SimRank>(this, rank));
    }
  }

  SimResult Run();

  template <class... Args>
  void Violation(fmt::format_string<Args...> format, Args&&... args) {
    if (result.violations.size() < 10) {
      result.violations.push_back(
          fmt::format("[{:.3f} s, step {}] ", ToSeconds(scheduler.now()), scheduler.steps()) +
          fmt::format(format, std::forward<Args>(args)...));
    }
  }

  // Ended against its will: what is left of the job cannot be expected to switch.
  bool Dead(RankId rank) const {
    return scheduler.killed(rank) || ranks[static_cast<size_t>(rank)]->ended;
  }
  int64_t last_committed() const { return last_committed_; }
  std::string DecisionOf(int64_t id) const { return server.Peek(SwitchKey(id, "decision")); }
  // Whether a layout is no more: never came to be, or a later one was committed.
  bool Over(int64_t epoch) const {
    return last_committed_ > epoch || DecisionOf(epoch).starts_with("abort");
  }

  // The step's own reduction over the active ranks. None: a member is gone.
  struct Reduced {
    bool all_ready;
    bool end;
  };
  std::optional<Reduced> Reduce(const LayoutInstance& instance, int64_t step, RankId rank,
                                bool ready);

  const SimScript script;
  SimScheduler scheduler;
  SimClock clock;
  SimStoreServer server;
  SimNet net;
  std::vector<std::unique_ptr<SimRank>> ranks;
  SimResult result;
  bool end_requested = false;
  std::map<int64_t, int> reports;  // by id

 private:
  struct Reduction {
    std::set<RankId> present;
    bool all_ready = true;
    bool end = false;
    bool failed = false;
  };

  void Strike(RankId owner);
  void Apply(const SimFault& fault);
  void OnWrite(RankId owner, const std::string& key, const std::string& value);
  void OnDecision(RankId owner, int64_t id, const std::string& value);
  void Launch();
  void Ask(Store& store, const std::string& spec);
  bool AwaitDecision(int64_t id, Duration timeout);
  void TryAgain(Store& store);
  void AwaitReports();
  bool AllLive() const;
  void CheckEnd();

  std::vector<int64_t> steps_of_rank_ = std::vector<int64_t>(16);
  std::vector<bool> struck_ = std::vector<bool>(16);
  bool faults_on_ = true;
  TimePoint quiet_from_{};                                       // the last cut or stop is over
  std::map<std::pair<int64_t, int64_t>, Reduction> reductions_;  // by epoch, step
  int64_t last_committed_ = 0;
  int64_t last_id_ = 0;
  std::map<int64_t, std::string> specs_;  // by id; 0: the first layout
};

// ---- SimRank ----

// Stands for the instance's views: gone when the instance is.
struct SimRank::Token {
  World* world;
  SimRank* rank;
  RankId rank_id;
  int64_t epoch;
  ~Token() {
    const bool gone = world->scheduler.killed(rank_id) || world->server.Lost(rank_id);
    if (rank->leaving || gone || world->Over(epoch)) return;
    world->Violation("rank {} freed its instance of epoch {} before a decision", rank_id, epoch);
  }
};

Status SimRank::CheckLayout(const vps::Layout&) { return Status::Ok(); }

Result<std::shared_ptr<void>> SimRank::Prepare(const LayoutInstance& instance) {
  world_.scheduler.Yield();
  if (std::exchange(fail_allocation, false)) return ResourceExhausted("no memory for views");
  return std::shared_ptr<void>(new Token{&world_, this, rank_, instance.epoch},
                               [](Token* token) { delete token; });
}

std::string SimRank::JobState() {
  moved_ = true;
  return fmt::format("step={}", step_);
}

std::shared_ptr<LayoutInstance> SimRank::FirstInstance() {
  auto instance = std::make_shared<LayoutInstance>();
  const auto layout = vps::ParseLayout(world_.script.first, world_.script.num_ranks);
  DT_CHECK_MSG(layout.ok(), layout.status().ToString());
  const auto map = vps::LayoutShardMap::Make(TinyCatalog(), *layout);
  DT_CHECK_MSG(map.ok(), map.status().ToString());
  instance->map = *map;
  instance->rank = rank_;
  auto state = engine::StateBuffers::Allocate(**map, rank_, engine::Fill::kZero);
  DT_CHECK(state.ok());
  instance->state = *std::move(state);
  instance->host =
      std::shared_ptr<void>(new Token{&world_, this, rank_, 0}, [](Token* token) { delete token; });
  return instance;
}

void SimRank::Run() {
  auto first = FirstInstance();
  SwitchOptions options;
  options.verify = world_.script.verify;
  options.fill = engine::Fill::kNan;
  options.prepare_timeout = seconds(3);
  options.move_timeout = seconds(1);
  options.agree_timeout = seconds(10);
  options.heartbeat = milliseconds(100);
  options.poll = milliseconds(40);
  options.report_timeout = seconds(30);
  const auto factory = world_.net.FactoryOf(rank_);
  auto agent = SwitchAgent::Start(
      {rank_,
       world_.script.num_ranks,
       TinyCatalog(),
       {},
       options,
       this,
       factory.get(),
       &world_.clock},
      world_.server.Connect(rank_), std::move(first),
      [this](const SwitchReport& report) { ++world_.reports[report.id]; },
      [this](std::function<void()> body) -> std::function<void()> {
        const int fiber = world_.scheduler.Spawn(rank_, std::move(body));
        return [this, fiber] {
          // Joining is no wait of the protocol: it goes on when the rank is killed.
          while (!world_.scheduler.done(fiber)) {
            world_.scheduler.Block(SimScheduler::kNever,
                                   [this, fiber] { return world_.scheduler.done(fiber); });
          }
        };
      });
  if (agent.ok()) {
    agent_ = *std::move(agent);
    if (agent_->current().active()) {
      Enter();
      VisitElements(agent_->current(), shards_, &agent_->current().state,
                    [](vps::TensorId tensor, int64_t index, std::byte* element) {
                      const uint32_t bits = Element(tensor, index, 0);
                      std::memcpy(element, &bits, 4);
                    });
    } else {
      step_ = Forgotten();
    }
    while (agent_->current().active() ? Step() : WaitIdle()) {
    }
    CheckState("at its end");
    // Peers of a reduction learn that this rank is gone before its agent has said good-bye.
    leaving = true;
    world_.net.Gone(rank_);
    ended = true;
    agent_.reset();
  }
  leaving = true;
  ended = true;
}

void SimRank::Enter() { shards_ = agent_->current().map->ShardsOf(rank_); }

bool SimRank::Step() {
  CheckMayTrain();
  CheckState("before a step");
  if (world_.scheduler.killed(rank_)) return false;
  ++step_;
  Train();
  world_.clock.SleepUntil(world_.clock.Now() +
                          milliseconds(world_.scheduler.random().Between(5, 60)));
  const bool ready = agent_->ready();
  const auto reduced = world_.Reduce(agent_->current(), step_, rank_, ready);
  if (!reduced) return false;
  agent_->StepTook(0.001);
  // Some loops come to the boundary only if there is something to do.
  if (!reduced->all_ready && world_.script.seed % 2 == 0) return !reduced->end;
  const int64_t before = agent_->current().epoch;
  const Result<BoundaryResult> result = agent_->AtStepBoundary(step_, reduced->all_ready);
  if (!result.ok()) return false;
  return Take(*result, before) && !reduced->end;
}

bool SimRank::WaitIdle() {
  const int64_t before = agent_->current().epoch;
  const Result<BoundaryResult> result = agent_->WaitWhileIdle();
  return result.ok() && Take(*result, before);
}

// Whether to go on.
bool SimRank::Take(const BoundaryResult& result, int64_t before) {
  if (world_.scheduler.killed(rank_)) return false;
  const LayoutInstance& now = agent_->current();
  if (result.what == What::kJobEnded) return false;
  if (result.what == What::kRolledBack && !world_.DecisionOf(LastSwitch()).starts_with("abort")) {
    world_.Violation("rank {} rolls switch {} back: decision is '{}'", rank_, LastSwitch(),
                     world_.DecisionOf(LastSwitch()));
  }
  if (result.what != What::kCommitted) {
    if (now.epoch != before)
      world_.Violation("rank {}: epoch {} without a commit", rank_, now.epoch);
    return true;
  }
  outcomes[now.epoch] = Outcome::kCommitted;
  if (world_.DecisionOf(now.epoch) != "commit") {
    world_.Violation("rank {} entered epoch {}: decision is '{}'", rank_, now.epoch,
                     world_.DecisionOf(now.epoch));
  }
  if (!now.active()) {
    step_ = Forgotten();
    return true;
  }
  Enter();
  int64_t told = -1;
  if (result.job_state.starts_with("step=")) {
    std::from_chars(result.job_state.data() + 5, result.job_state.data() + result.job_state.size(),
                    told);
  }
  if (step_ >= 0 && told != step_) {
    world_.Violation("rank {} goes on from step {}, was at {}", rank_, told, step_);
  }
  step_ = told;
  CheckState("after a commit");
  agent_->FirstStepStarts();
  return true;
}

int64_t SimRank::LastSwitch() const {
  const std::string name = world_.net.last_epoch(rank_);  // "switch7"
  int64_t id = 0;
  if (name.size() > 6) std::from_chars(name.data() + 6, name.data() + name.size(), id);
  return id;
}

void SimRank::CheckMayTrain() {
  const int64_t epoch = agent_->current().epoch;
  if (world_.last_committed() > epoch) {
    world_.Violation("rank {} trains in epoch {}, {} is committed", rank_, epoch,
                     world_.last_committed());
  }
  if (!std::exchange(moved_, false)) return;
  const int64_t id = LastSwitch();
  if (world_.DecisionOf(id).empty()) {
    world_.Violation("rank {} trains before switch {} is decided", rank_, id);
  }
}

void SimRank::CheckState(std::string_view when) {
  LayoutInstance& instance = agent_->current();
  if (!instance.active() || world_.scheduler.killed(rank_)) return;
  int64_t wrong = 0;
  std::string first;
  VisitElements(instance, shards_, &instance.state,
                [&](vps::TensorId tensor, int64_t index, const std::byte* element) {
                  uint32_t bits = 0;
                  std::memcpy(&bits, element, 4);
                  if (bits == Element(tensor, index, step_)) return;
                  if (wrong++ == 0) {
                    first = fmt::format("{}[{}] is {:#x}", instance.map->catalog().NameOf(tensor),
                                        index, bits);
                  }
                });
  if (wrong > 0) {
    world_.Violation("rank {} {}: {} elements are not those of step {} in epoch {}: {}", rank_,
                     when, wrong, step_, instance.epoch, first);
  }
}

void SimRank::Train() {
  VisitElements(agent_->current(), shards_, &agent_->current().state,
                [this](vps::TensorId tensor, int64_t index, std::byte* element) {
                  const uint32_t bits = Element(tensor, index, step_);
                  std::memcpy(element, &bits, 4);
                });
}

// ---- World ----

std::optional<World::Reduced> World::Reduce(const LayoutInstance& instance, int64_t step,
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

void World::Strike(RankId owner) {
  if (owner < 0 || !faults_on_) return;
  const int64_t step = steps_of_rank_[static_cast<size_t>(owner)]++;
  for (size_t i = 0; i < script.faults.size(); ++i) {
    const SimFault& fault = script.faults[i];
    if (struck_[i] || fault.victim != owner || step < fault.at_step) continue;
    struck_[i] = true;
    Apply(fault);
  }
}

void World::Apply(const SimFault& fault) {
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

void World::OnWrite(RankId owner, const std::string& key, const std::string& value) {
  // "switch/<id>/decision"
  if (!key.starts_with("switch/") || !key.ends_with("/decision")) return;
  int64_t id = 0;
  std::from_chars(key.data() + 7, key.data() + key.size(), id);
  OnDecision(owner, id, value);
}

void World::OnDecision(RankId owner, int64_t id, const std::string& value) {
  if (value != "commit") {
    ++result.rolled_back;
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
  last_committed_ = id;
}

void World::Ask(Store& store, const std::string& spec) {
  specs_[++last_id_] = spec;
  const auto id = RequestSwitch(store, spec, 0);
  if (!id.ok() || *id != last_id_) Violation("switch {} could not be asked for", last_id_);
}

bool World::AwaitDecision(int64_t id, Duration timeout) {
  return scheduler.Block(scheduler.now() + timeout, [this, id] { return !DecisionOf(id).empty(); });
}

void World::Launch() {
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
void World::AwaitReports() {
  scheduler.Block(scheduler.now() + seconds(40), [this] {
    for (int64_t id = 1; id <= last_id_; ++id) {
      if (!reports.contains(id)) return !AllLive();
    }
    return true;
  });
}

bool World::AllLive() const {
  for (RankId rank = 0; rank < script.num_ranks; ++rank) {
    if (Dead(rank) || server.Lost(rank)) return false;
  }
  return true;
}

// If all ranks live: what was rolled back commits now that nothing fails.
void World::TryAgain(Store& store) {
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

void World::CheckEnd() {
  bool deaths = false;
  for (RankId rank = 0; rank < script.num_ranks; ++rank) {
    deaths = deaths || scheduler.killed(rank) || server.Lost(rank);
    result.steps_of_rank[rank] = steps_of_rank_[static_cast<size_t>(rank)];
    if (scheduler.killed(rank) || server.Lost(rank)) ++result.deaths;
    for (const auto& [id, outcome] : ranks[static_cast<size_t>(rank)]->outcomes) {
      if (DecisionOf(id) != "commit")
        Violation("rank {}: {} committed, decision '{}'", rank, id, DecisionOf(id));
    }
  }
  for (const auto& [id, count] : reports) {
    if (count > 1) Violation("switch {} is reported {} times", id, count);
  }
  if (deaths) return;
  for (int64_t id = 1; id <= last_id_; ++id) {
    if (DecisionOf(id).empty()) Violation("switch {} is never decided", id);
    if (reports[id] != 1) Violation("switch {} is reported {} times", id, reports[id]);
  }
  for (const auto& [key, value] : server.values()) {
    if (key == "switch/last_id" || key == "job/end" || key.ends_with("/request") ||
        key.ends_with("/decision")) {
      continue;
    }
    Violation("{} is left in the store", key);
  }
}

SimResult World::Run() {
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

}  // namespace

SimResult RunSim(const SimScript& script) {
  World world(script);
  return world.Run();
}

}  // namespace dynatrain::elastic
