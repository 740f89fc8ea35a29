#include "dynatrain/elastic/sim_rank.h"

#include <charconv>
#include <cstring>
#include <utility>

#include "dynatrain/elastic/sim_oracle.h"

namespace dynatrain::elastic {

using std::chrono::milliseconds;
using std::chrono::seconds;
using What = BoundaryResult::What;

// Stands for the instance's views: gone when the instance is.
struct SimRank::Token {
  SimJob* job;
  SimRank* rank;
  RankId rank_id;
  int64_t epoch;
  ~Token() {
    const bool gone = job->scheduler.killed(rank_id) || job->server.Lost(rank_id);
    if (rank->leaving || gone || job->Over(epoch)) return;
    job->Violation("rank {} freed its instance of epoch {} before a decision", rank_id, epoch);
  }
};

namespace {

std::string RoleName(const vps::Role& role) {
  return fmt::format("tp{}.dp{}.pp{}", role.tp, role.dp, role.pp);
}

}  // namespace

Status SimRank::CheckLayout(const vps::Layout&) { return Status::Ok(); }

Result<std::shared_ptr<void>> SimRank::Prepare(const LayoutInstance& instance) {
  job_.scheduler.Yield();
  if (std::exchange(fail_allocation, false)) return ResourceExhausted("no memory for views");
  return std::shared_ptr<void>(new Token{&job_, this, rank_, instance.epoch},
                               [](Token* token) { delete token; });
}

std::string SimRank::JobState() {
  moved_ = true;
  if (job_.script.drifted == rank_ && drift_ == Drift::kToCome) {
    FlipTiedBit();
    drift_ = Drift::kThere;
  }
  return fmt::format("step={}", step_);
}

// Both kinds of loop are tried.
bool SimRank::has_role_state() const { return job_.script.seed % 3 != 0; }

std::string SimRank::RoleState() {
  const LayoutInstance& now = agent_->current();
  const std::string role = RoleName(*now.map->layout().RoleOfRank(rank_));
  return fmt::format("{} {}", role, job_.role_begins[now.epoch][role]);
}

void SimRank::CheckRoleState(const std::optional<std::string>& given, int64_t before) {
  const LayoutInstance& now = agent_->current();
  auto& old_roles = job_.role_begins[before];
  auto& roles = job_.role_begins[now.epoch];
  const std::string role = RoleName(*now.map->layout().RoleOfRank(rank_));
  const auto was = old_roles.find(role);
  roles[role] = was == old_roles.end() ? step_ : was->second;
  const std::string expected = was == old_roles.end() || !has_role_state()
                                   ? "nothing"
                                   : fmt::format("{} {}", role, was->second);
  if (given.value_or("nothing") == expected) return;
  job_.Violation("rank {} in epoch {} is given {} for its role, not {}", rank_, now.epoch,
                 given.value_or("nothing"), expected);
}

std::shared_ptr<LayoutInstance> SimRank::FirstInstance() {
  auto instance = std::make_shared<LayoutInstance>();
  const auto layout = vps::ParseLayout(job_.script.first, job_.script.num_ranks);
  DT_CHECK_MSG(layout.ok(), layout.status().ToString());
  const auto map = vps::LayoutShardMap::Make(TinyCatalog(), *layout);
  DT_CHECK_MSG(map.ok(), map.status().ToString());
  instance->map = *map;
  instance->rank = rank_;
  auto state = engine::StateBuffers::Allocate(**map, rank_, engine::Fill::kZero);
  DT_CHECK(state.ok());
  instance->state = *std::move(state);
  instance->host =
      std::shared_ptr<void>(new Token{&job_, this, rank_, 0}, [](Token* token) { delete token; });
  return instance;
}

void SimRank::Run() {
  auto first = FirstInstance();
  SwitchOptions options;
  options.verify = job_.script.verify;
  options.mode = job_.script.mode;
  options.budget = job_.script.budget;
  options.phases = job_.script.phases;
  options.fill = engine::Fill::kNan;
  options.prepare_timeout = seconds(3);
  options.move_timeout = seconds(1);
  options.agree_timeout = seconds(10);
  options.heartbeat = milliseconds(100);
  options.poll = milliseconds(40);
  options.report_timeout = seconds(30);
  const auto factory = job_.net.FactoryOf(rank_);
  auto agent = SwitchAgent::Start(
      {rank_, job_.script.num_ranks, TinyCatalog(), {}, options, this, factory.get(), &job_.clock},
      job_.server.Connect(rank_), std::move(first),
      [this](const SwitchReport& report) { ++job_.reports[report.id]; },
      [this](std::function<void()> body) -> std::function<void()> {
        const int fiber = job_.scheduler.Spawn(rank_, std::move(body));
        return [this, fiber] {
          // Joining is no wait of the protocol: it goes on when the rank is killed.
          while (!job_.scheduler.done(fiber)) {
            job_.scheduler.Block(SimScheduler::kNever,
                                 [this, fiber] { return job_.scheduler.done(fiber); });
          }
        };
      });
  if (agent.ok()) {
    agent_ = *std::move(agent);
    if (agent_->current().active()) {
      job_.role_begins[0][RoleName(*agent_->current().map->layout().RoleOfRank(rank_))] = 0;
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
    if (!state_gone_) CheckState("at its end");
    // Peers of a reduction learn that this rank is gone before its agent has said good-bye.
    leaving = true;
    job_.net.Gone(rank_);
    ended = true;
    agent_.reset();
  }
  leaving = true;
  ended = true;
}

void SimRank::Enter() { shards_ = agent_->current().map->ShardsOf(rank_); }

bool SimRank::Step() {
  CheckMayTrain();
  if (drift_ == Drift::kThere) {
    FlipTiedBit();
    drift_ = Drift::kMended;
  }
  CheckState("before a step");
  if (job_.scheduler.killed(rank_)) return false;
  ++step_;
  Train();
  job_.clock.SleepUntil(job_.clock.Now() + milliseconds(job_.scheduler.random().Between(5, 60)));
  const bool ready = agent_->ready();
  const auto reduced = job_.Reduce(agent_->current(), step_, rank_, ready);
  if (!reduced) return false;
  agent_->StepTook(0.001);
  // Some loops come to the boundary only if there is something to do.
  if (!reduced->all_ready && job_.script.seed % 2 == 0) return !reduced->end;
  const int64_t before = agent_->current().epoch;
  const Result<BoundaryResult> result = agent_->AtStepBoundary(step_, reduced->all_ready);
  if (!result.ok()) return TakeError(result.status());
  return Take(*result, before) && !reduced->end;
}

bool SimRank::WaitIdle() {
  const int64_t before = agent_->current().epoch;
  const Result<BoundaryResult> result = agent_->WaitWhileIdle();
  return result.ok() ? Take(*result, before) : TakeError(result.status());
}

// A rank goes on after no error. A loss must be what all agreed on.
bool SimRank::TakeError(const Status& status) {
  state_gone_ = job_.script.mode == engine::Mode::kStream;
  if (job_.scheduler.killed(rank_) || status.code() != StatusCode::kDataLoss) return false;
  const int64_t id = job_.LostSwitch();
  // Whoever gave memory back while the others, who had not, took it for dead and went on, is as good
  // as dead. Only what holds a rank up makes it so.
  const SimScript& script = job_.script;
  const bool held_up = !script.faults.empty() || script.impatience > 0;
  taken_for_dead =
      id == 0 && held_up && status.message().find("taken for dead") != std::string::npos;
  if (id == 0 && !taken_for_dead)
    job_.Violation("rank {} ends as if state were lost: {}", rank_, status.message());
  if (id != 0) outcomes[id] = Outcome::kLost;
  return false;
}

// Whether to go on.
bool SimRank::Take(const BoundaryResult& result, int64_t before) {
  if (job_.scheduler.killed(rank_)) return false;
  const LayoutInstance& now = agent_->current();
  if (result.what == What::kJobEnded) return false;
  if (result.what == What::kRolledBack && !job_.DecisionOf(LastSwitch()).starts_with("abort")) {
    job_.Violation("rank {} rolls switch {} back: decision is '{}'", rank_, LastSwitch(),
                   job_.DecisionOf(LastSwitch()));
  }
  if (result.what == What::kRolledBack && LastSwitch() != 0 && LastSwitch() == job_.LostSwitch())
    job_.Violation("rank {} rolls switch {} back, which is lost", rank_, LastSwitch());
  if (result.what != What::kCommitted) {
    if (now.epoch != before) job_.Violation("rank {}: epoch {} without a commit", rank_, now.epoch);
    return true;
  }
  outcomes[now.epoch] = Outcome::kCommitted;
  if (job_.DecisionOf(now.epoch) != "commit") {
    job_.Violation("rank {} entered epoch {}: decision is '{}'", rank_, now.epoch,
                   job_.DecisionOf(now.epoch));
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
    job_.Violation("rank {} goes on from step {}, was at {}", rank_, told, step_);
  }
  step_ = told;
  CheckState("after a commit");
  CheckRoleState(result.role_state, before);
  agent_->FirstStepStarts();
  return true;
}

int64_t SimRank::LastSwitch() const {
  const std::string name = job_.net.last_epoch(rank_);  // "switch7"
  int64_t id = 0;
  if (name.size() > 6) std::from_chars(name.data() + 6, name.data() + name.size(), id);
  return id;
}

void SimRank::CheckMayTrain() {
  const int64_t epoch = agent_->current().epoch;
  if (job_.last_committed() > epoch) {
    job_.Violation("rank {} trains in epoch {}, {} is committed", rank_, epoch,
                   job_.last_committed());
  }
  if (!std::exchange(moved_, false)) return;
  const int64_t id = LastSwitch();
  if (job_.DecisionOf(id).empty()) {
    job_.Violation("rank {} trains before switch {} is decided", rank_, id);
  }
}

void SimRank::CheckState(std::string_view when) {
  LayoutInstance& instance = agent_->current();
  if (!instance.active() || job_.scheduler.killed(rank_)) return;
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
    job_.Violation("rank {} {}: {} elements are not those of step {} in epoch {}: {}", rank_, when,
                   wrong, step_, instance.epoch, first);
  }
}

void SimRank::Train() {
  VisitElements(agent_->current(), shards_, &agent_->current().state,
                [this](vps::TensorId tensor, int64_t index, std::byte* element) {
                  const uint32_t bits = Element(tensor, index, step_);
                  std::memcpy(element, &bits, 4);
                });
}

void SimRank::FlipTiedBit() {
  LayoutInstance& instance = agent_->current();
  for (const vps::Shard& shard : shards_) {
    if (instance.map->catalog().parameter_of(shard.tensor).homes.size() < 2) continue;
    instance.state.bytes(shard.buffer)[static_cast<size_t>(shard.offset) * 4] ^= std::byte{1};
    return;
  }
}

}  // namespace dynatrain::elastic
