#include "dynatrain/apps/rank_main.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "dynatrain/apps/children.h"
#include "dynatrain/apps/events.h"
#include "dynatrain/apps/job_config.h"
#include "dynatrain/apps/job_setup.h"
#include "dynatrain/apps/rank_checkpoint.h"
#include "dynatrain/apps/rank_process.h"
#include "dynatrain/base/json.h"
#include "dynatrain/bridge/c10d_groups.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/elastic/agent.h"
#include "dynatrain/io/checkpoint.h"
#include "dynatrain/io/file.h"
#include "dynatrain/trainer/init.h"
#include "dynatrain/trainer/trainer.h"
#include "dynatrain/trainer/trainer_host.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;

constexpr Duration kJoinTimeout = std::chrono::seconds(60);
constexpr Duration kHoldInterval = std::chrono::milliseconds(2);

// Set by kStopSignal, and by SIGTERM in a job that saves.
std::atomic<bool> stop_asked{false};
void OnStop(int) { stop_asked = true; }

// What a rank that was asked to stop adds to the sum of readiness, so that all ranks hear of it at
// the same step.
constexpr int kStopShare = 1 << 20;

// Seconds since it was made or last read.
class Stopwatch {
 public:
  double Lap() {
    const TimePoint now = MonotonicClock().Now();
    return ToSeconds(now - std::exchange(since_, now));
  }

 private:
  TimePoint since_ = MonotonicClock().Now();
};

// The model in a dump, by the names of a Hugging Face config.json.
json ModelJson(const models::ModelConfig& model) {
  return {{"name", model.name},
          {"num_hidden_layers", model.layers},
          {"hidden_size", model.hidden},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"intermediate_size", model.ffn},
          {"vocab_size", model.vocab},
          {"tie_word_embeddings", model.tied}};
}

class RankProcess {
 public:
  RankProcess(RankId rank, EventWriter* events) : rank_(rank), events_(events) {}

  Status Run(const std::string& config, const bridge::StoreAddress& store,
             const bridge::GlooOptions& gloo) {
    const Status status = Train(config, store, gloo);
    // State that is lost is told before the rank ends.
    if (status.code() == StatusCode::kDataLoss) agent_.reset();
    return status;
  }

 private:
  Status Train(const std::string& config, const bridge::StoreAddress& store,
               const bridge::GlooOptions& gloo) {
    DT_RETURN_IF_ERROR(Join(config, store, gloo));
    while (true) {
      if (!agent_->current().active()) {
        DT_ASSIGN_OR_RETURN(const elastic::BoundaryResult result, agent_->WaitWhileIdle());
        if (result.what == elastic::BoundaryResult::What::kJobEnded) return {};
        if (result.what == elastic::BoundaryResult::What::kCommitted)
          DT_RETURN_IF_ERROR(Enter(result));
        continue;
      }
      if (step() >= config_.last_step() || stopping_) return Finish();
      DT_RETURN_IF_ERROR(OneStep());
    }
  }

  Status Join(const std::string& config, const bridge::StoreAddress& store,
              bridge::GlooOptions gloo);
  Result<std::shared_ptr<elastic::LayoutInstance>> FirstInstance(double* groups_seconds,
                                                                 double* load_seconds);
  Status OneStep();
  Status Explained(const Status& status) const;
  Status Enter(const elastic::BoundaryResult& result);
  Result<int64_t> AskForScheduled(int64_t step);
  Status AtBoundary(int64_t step, bool all_ready);
  Status HoldForScheduled(int64_t step, int64_t id);
  Status Probe(std::string_view when, int64_t switch_id);
  Status Dump(std::string_view when, int64_t switch_id);
  Status Finish();
  Status Save(std::string_view occasion);
  CheckpointContext checkpoint() const { return {rank_, &config_, &setup_, store_.get(), events_}; }

  int64_t step() const { return host_->state().step; }
  const vps::Layout& layout() const { return agent_->current().map->layout(); }
  bool speaks() const { return std::ranges::min(layout().Ranks()) == rank_; }
  trainer::Trainer& trainer() const { return trainer::TrainerHost::TrainerOf(agent_->current()); }

  const RankId rank_;
  EventWriter* const events_;
  JobConfig config_;
  JobSetup setup_;
  std::unique_ptr<bridge::GlooGroupFactory> groups_;
  std::shared_ptr<elastic::Store> store_;
  std::unique_ptr<trainer::TrainerHost> host_;
  std::unique_ptr<elastic::SwitchAgent> agent_;
  bool first_step_after_switch_ = false;
  bool stopping_ = false;
  int64_t saved_step_ = -1;
};

Status RankProcess::Join(const std::string& config, const bridge::StoreAddress& store,
                         bridge::GlooOptions gloo) {
  DT_ASSIGN_OR_RETURN(config_, JobConfig::FromJson(config));
  if (!config_.save.empty()) ::signal(SIGTERM, OnStop);
  DT_ASSIGN_OR_RETURN(setup_, JobSetup::Make(config_));
  DT_ASSIGN_OR_RETURN(std::unique_ptr<elastic::Store> connected,
                      bridge::ConnectStore(store, kJoinTimeout));
  store_ = std::move(connected);
  gloo.operation_timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(config_.step_timeout));
  DT_ASSIGN_OR_RETURN(groups_, bridge::GlooGroupFactory::Connect(rank_, store, gloo, kJoinTimeout));
  DT_ASSIGN_OR_RETURN(host_, trainer::TrainerHost::Make(setup_.trainer));
  Stopwatch watch;
  double groups_seconds = 0, load_seconds = 0;
  DT_ASSIGN_OR_RETURN(std::shared_ptr<elastic::LayoutInstance> first,
                      FirstInstance(&groups_seconds, &load_seconds));
  elastic::SwitchOptions options;
  DT_ASSIGN_OR_RETURN(options.verify, engine::ParseVerify(config_.verify));
  DT_ASSIGN_OR_RETURN(options.mode, engine::ParseMode(config_.mode));
  DT_ASSIGN_OR_RETURN(options.fill, ParseFill(config_.fill));
  options.derive = config_.derive;
  if (config_.budget >= 0) options.budget = config_.budget;
  elastic::SwitchParticipant::Context context{.rank = rank_,
                                              .num_ranks = config_.num_ranks,
                                              .catalog = setup_.catalog,
                                              .topology = {},
                                              .options = options,
                                              .host = host_.get(),
                                              .groups = groups_.get(),
                                              .clock = &MonotonicClock()};
  const auto on_report = [this](const elastic::SwitchReport& report) {
    events_->Write("switch", json::parse(report.ToJson()));
  };
  DT_ASSIGN_OR_RETURN(agent_,
                      elastic::SwitchAgent::Start(std::move(context), store_, first, on_report));
  events_->Write("ready", {{"rank", rank_},
                           {"groups_seconds", groups_seconds},
                           {"load_seconds", load_seconds},
                           {"build_seconds", watch.Lap() - groups_seconds - load_seconds}});
  if (!agent_->current().active()) return {};
  DT_ASSIGN_OR_RETURN(const int64_t id, AskForScheduled(step()));
  return HoldForScheduled(step(), id);
}

Result<std::shared_ptr<elastic::LayoutInstance>> RankProcess::FirstInstance(double* groups_seconds,
                                                                            double* load_seconds) {
  auto instance = std::make_shared<elastic::LayoutInstance>();
  instance->rank = rank_;
  DT_ASSIGN_OR_RETURN(const vps::Layout layout, setup_.CheckedLayout(config_.layout));
  DT_ASSIGN_OR_RETURN(instance->map, vps::LayoutShardMap::Make(setup_.catalog, layout));
  DT_ASSIGN_OR_RETURN(instance->state,
                      engine::StateBuffers::Allocate(*instance->map, rank_, engine::Fill::kZero));
  if (!instance->active()) return instance;

  Stopwatch watch;
  for (const elastic::GroupSpec& spec : elastic::GroupsOfRank(layout, rank_)) {
    DT_ASSIGN_OR_RETURN(instance->groups[spec.axis], groups_->MakeGroup("0", spec, kJoinTimeout));
  }
  *groups_seconds = watch.Lap();
  if (config_.resume.empty()) {
    DT_RETURN_IF_ERROR(trainer::InitialiseState(setup_.model, *instance->map, rank_, config_.seed,
                                                &instance->state));
  } else {
    DT_ASSIGN_OR_RETURN(const std::string job_state, LoadCheckpoint(checkpoint(), instance.get()));
    // An import has none: the run begins with it.
    if (!job_state.empty()) DT_RETURN_IF_ERROR(host_->Restore(job_state));
    *load_seconds = watch.Lap();
  }
  DT_ASSIGN_OR_RETURN(instance->host, host_->Prepare(*instance));
  return instance;
}

// What a rank can do about a step that did not end.
Status RankProcess::Explained(const Status& status) const {
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return DeadlineExceeded(
      "{}; a rank of the group is stopped, stuck or slow: --step-timeout {} is how many seconds a "
      "rank waits for another",
      status.message(), config_.step_timeout);
}

Status RankProcess::OneStep() {
  const TimePoint start = MonotonicClock().Now();
  if (std::exchange(first_step_after_switch_, false)) agent_->FirstStepStarts();
  const int64_t step = this->step() + 1;
  const int sum_of = (agent_->ready() ? 1 : 0) + (stop_asked ? kStopShare : 0);
  const Result<trainer::StepResult> trained = trainer().Step(step, sum_of);
  if (!trained.ok()) return Explained(trained.status());
  const trainer::StepResult& result = *trained;
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    return DataLoss(
        "step {}: the loss is {} and the gradient norm {}: training has diverged; go on from an "
        "earlier checkpoint with a lower --lr",
        step, result.loss, result.grad_norm);
  }
  host_->Finished(step);
  const double seconds = ToSeconds(MonotonicClock().Now() - start);
  agent_->StepTook(seconds);
  if (speaks()) {
    events_->Write("step", {{"step", step},
                            {"loss", result.loss},
                            {"seconds", seconds},
                            {"tokens", result.tokens},
                            {"grad_norm", result.grad_norm},
                            {"lr", result.lr},
                            {"layout", layout().ToString()},
                            {"started", ToSeconds(start)}});
  }
  if (config_.report_samples) {
    events_->Write("samples",
                   {{"rank", rank_}, {"step", step}, {"ids", trainer().SamplesOfLastStep()}});
  }
  DT_ASSIGN_OR_RETURN(const int64_t id, AskForScheduled(step));
  stopping_ = result.ready_sum >= kStopShare;
  if (step == config_.last_step() || stopping_) return {};
  if (config_.save_every > 0 && step % config_.save_every == 0) {
    DT_RETURN_IF_ERROR(Save("periodic"));
  }
  const int64_t epoch = agent_->current().epoch;
  DT_RETURN_IF_ERROR(AtBoundary(step, result.ready_sum == layout().world_size()));
  return agent_->current().epoch == epoch ? HoldForScheduled(step, id) : Status::Ok();
}

// Meets the agent after `step`, and enters the new layout if it has been switched to.
Status RankProcess::AtBoundary(int64_t step, bool all_ready) {
  if (all_ready) {
    const int64_t id = agent_->ready_switch();
    DT_RETURN_IF_ERROR(Probe("before", id));
    DT_RETURN_IF_ERROR(Dump("before", id));
  }
  DT_ASSIGN_OR_RETURN(const elastic::BoundaryResult boundary,
                      agent_->AtStepBoundary(step, all_ready));
  if (boundary.what == elastic::BoundaryResult::What::kCommitted) return Enter(boundary);
  return {};
}

// With --exact-switches, after a step that has a switch: waits, as all active ranks do, until all
// are ready and makes it, or until it is called off. `id` is of the switch on the rank that asked
// for it, which looks at its decision for all.
Status RankProcess::HoldForScheduled(int64_t step, int64_t id) {
  const auto is_due = [step](const ScheduledSwitch& s) { return s.step == step; };
  if (!config_.exact_switches || std::ranges::none_of(config_.switches, is_due)) return {};
  while (true) {
    int decided = 0;
    if (id != 0) {
      DT_ASSIGN_OR_RETURN(const std::optional<std::string> decision,
                          store_->TryGet(elastic::SwitchKey(id, "decision")));
      decided = decision.has_value() ? 1 : 0;
    }
    const Result<trainer::Agreement> told = trainer().Agree(agent_->ready() ? 1 : 0, decided);
    if (!told.ok()) return Explained(told.status());
    const bool all_ready = told->ready == layout().world_size();
    DT_RETURN_IF_ERROR(AtBoundary(step, all_ready));
    if (all_ready || told->decided > 0) return {};
    MonotonicClock().SleepUntil(MonotonicClock().Now() + kHoldInterval);
  }
}

// After a committed switch: takes over the job's state and goes on in the new layout.
Status RankProcess::Enter(const elastic::BoundaryResult& result) {
  if (!agent_->current().active()) return {};
  DT_RETURN_IF_ERROR(host_->Restore(result.job_state));
  first_step_after_switch_ = true;
  if (config_.dump_state.empty() && !config_.probe_loss) return {};
  // Checking is no part of the pause: the first step could start here.
  agent_->FirstStepStarts();
  first_step_after_switch_ = false;
  const int64_t id = agent_->current().epoch;
  DT_RETURN_IF_ERROR(Dump("after", id));
  return Probe("after", id);
}

// The id of the last switch that this rank asked for; 0 if it did not.
Result<int64_t> RankProcess::AskForScheduled(int64_t step) {
  int64_t id = 0;
  if (!speaks()) return id;
  for (const ScheduledSwitch& scheduled : config_.switches) {
    if (scheduled.step != step) continue;
    DT_ASSIGN_OR_RETURN(id, elastic::RequestSwitch(*store_, scheduled.spec, step));
    events_->Write("requested", {{"id", id}, {"spec", scheduled.spec}, {"step", step}});
  }
  return id;
}

Status RankProcess::Probe(std::string_view when, int64_t switch_id) {
  if (!config_.probe_loss) return {};
  DT_ASSIGN_OR_RETURN(const double loss, trainer().EvalLoss());
  if (speaks()) {
    events_->Write("probe",
                   {{"switch", switch_id}, {"when", when}, {"step", step()}, {"loss", loss}});
  }
  return {};
}

Status RankProcess::Dump(std::string_view when, int64_t switch_id) {
  if (config_.dump_state.empty()) return {};
  const std::string directory = fmt::format("{}/switch-{}-{}", config_.dump_state, switch_id, when);
  const elastic::LayoutInstance& current = agent_->current();
  DT_RETURN_IF_ERROR(io::DumpState(directory, *current.map, rank_, current.state));
  if (!speaks()) return {};
  const json about = {{"spec", layout().ToString()},
                      {"step", step()},
                      {"dtype", config_.dtype},
                      {"num_ranks", config_.num_ranks},
                      {"model", ModelJson(setup_.model)}};
  return io::WriteFileAtomically(directory + "/layout.json", DumpJson(about, 1));
}

Status RankProcess::Finish() {
  if (!config_.save.empty() && saved_step_ != step()) DT_RETURN_IF_ERROR(Save("last"));
  if (speaks())
    DT_RETURN_IF_ERROR(elastic::EndJob(*store_, fmt::format("step {} was the last", step())));
  return {};
}

Status RankProcess::Save(std::string_view occasion) {
  DT_ASSIGN_OR_RETURN(const bool saved, SaveCheckpoint(checkpoint(), agent_->current(), step(),
                                                       host_->JobState(), occasion));
  if (saved) saved_step_ = step();
  return {};
}

}  // namespace

int RankMain(RankId rank, const bridge::StoreAddress& store, const bridge::GlooOptions& gloo,
             pid_t launcher) {
  ::signal(kStopSignal, OnStop);
  // After an error it outlives the body, and is not destroyed: see RunRankProcess.
  std::optional<RankProcess> process;
  return RunRankProcess(rank, launcher, [&](const std::string& config, EventWriter* events) {
    const Status status = process.emplace(rank, events).Run(config, store, gloo);
    if (status.ok()) process.reset();  // what is still to be told goes through `events`
    return status;
  });
}

}  // namespace dynatrain::apps
