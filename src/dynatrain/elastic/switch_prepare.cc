// The part of a switch that runs while training goes on.
#include <algorithm>

#include "dynatrain/base/hash.h"
#include "dynatrain/elastic/switch.h"
#include "dynatrain/elastic/switch_votes.h"
#include "dynatrain/engine/budget.h"
#include "dynatrain/planner/route.h"

namespace dynatrain::elastic {
namespace {

std::string EpochName(int64_t switch_id) { return fmt::format("switch{}", switch_id); }

}  // namespace

Status SwitchParticipant::Prepare(Store& store) {
  DT_CHECK(participates());
  const TimePoint began = context_.clock->Now();
  const Status status = PrepareSteps(store);
  report_.prepare_seconds = ToSeconds(context_.clock->Now() - began);
  if (status.ok()) return status;
  const Result<Outcome> outcome = AbortUnvoted(store, status);
  if (!outcome.ok()) return outcome.status();
  {
    const std::lock_guard lock(transport_mutex_);
    transport_.reset();
  }
  staging_.reset();
  next_.reset();
  return *outcome == Outcome::kLost ? LostStatus() : Aborted("{}", report_.reason);
}

Status SwitchParticipant::PrepareSteps(Store& store) {
  const Duration timeout = context_.options.prepare_timeout;
  stage_vote_ = context_.options.budget ? "fits" : "planned";
  DT_RETURN_IF_ERROR(PlanRoute());
  // Others may be that long in the groups of a switch before this one, which is off already.
  if (context_.options.budget)
    DT_RETURN_IF_ERROR(AgreeOnGranularity(store, context_.clock->Now() + 2 * timeout));
  stage_vote_ = "planned";
  DT_RETURN_IF_ERROR(Plan());
  DT_RETURN_IF_ERROR(VotePlanned(store, context_.clock->Now() + 2 * timeout));
  const TimePoint deadline = context_.clock->Now() + timeout;
  stage_vote_ = "prepared";
  DT_RETURN_IF_ERROR(Build(deadline));
  DT_RETURN_IF_ERROR(VotePrepared(store, deadline));
  stage_vote_ = "verified";
  return Status::Ok();
}

Status SwitchParticipant::PlanRoute() {
  DT_RETURN_IF_ERROR(resolved_);
  DT_RETURN_IF_ERROR(context_.host->CheckLayout(to_->layout()));
  compile_.mode = context_.options.mode;
  compile_.phases = context_.options.phases;
  DT_ASSIGN_OR_RETURN(route_,
                      planner::PlanRoute(*current_->map, *to_, context_.topology, context_.rank,
                                         {.derive = context_.options.derive}));
  DT_ASSIGN_OR_RETURN(derivations_, engine::PlanDerivations(route_, *to_));
  return Status::Ok();
}

Status SwitchParticipant::AgreeOnGranularity(Store& store, TimePoint deadline) {
  Vote mine;
  DT_ASSIGN_OR_RETURN(mine.peaks, engine::PeaksByGranularity(route_, *current_->map, *to_,
                                                             context_.topology, ranks_, compile_));
  DT_RETURN_IF_ERROR(Put(store, Key("fits", context_.rank), mine.ToJson()));
  std::map<RankId, std::vector<ByteCount>> peaks;
  for (const RankId rank : ranks_) {
    DT_ASSIGN_OR_RETURN(const std::string text,
                        AwaitValue(store, Key("fits", rank), deadline,
                                   fmt::format("memory needs of rank {}", rank)));
    const Vote vote = Vote::FromJson(text);
    if (!vote.error.empty()) return Aborted("rank {}: {}", rank, vote.error);
    peaks[rank] = vote.peaks;
  }
  DT_ASSIGN_OR_RETURN(const engine::Granularity granularity,
                      engine::GranularityWithin(*context_.options.budget, compile_, peaks));
  granularity.ApplyTo(&compile_);
  return Status::Ok();
}

Status SwitchParticipant::Plan() {
  DT_ASSIGN_OR_RETURN(
      program_, engine::Compile(route_, *current_->map, *to_, context_.topology, ranks_, compile_));
  report_.phases = compile_.phases;
  report_.moved_bytes = program_.stats.received_bytes;
  report_.kept_bytes = program_.stats.kept_bytes;
  report_.peak_extra_bytes = program_.stats.peak_extra_bytes;

  next_ = std::make_shared<LayoutInstance>();
  next_->epoch = request_.id;
  next_->map = to_;
  next_->rank = context_.rank;
  const auto make = compile_.mode == engine::Mode::kStream ? engine::StateBuffers::Reserve
                                                           : engine::StateBuffers::AllocateReusing;
  DT_ASSIGN_OR_RETURN(next_->state, make(*to_, context_.rank, context_.options.fill,
                                         current_->state, program_.alias));
  DT_ASSIGN_OR_RETURN(staging_, engine::Staging::Make(program_, context_.options.verify));
  return Status::Ok();
}

Status SwitchParticipant::VotePlanned(Store& store, TimePoint deadline) {
  Vote mine;
  mine.fingerprint = Hasher()
                         .Add(program_.inputs_fingerprint)
                         .Add(context_.options.verify)
                         .Add(context_.options.derive)
                         .Add(request_.id)
                         .hash();
  mine.catalog = context_.catalog->Fingerprint();
  mine.balance = program_.message_balance;
  DT_RETURN_IF_ERROR(Put(store, Key("planned", context_.rank), mine.ToJson()));
  Votes votes;
  for (const RankId rank : ranks_) {
    DT_ASSIGN_OR_RETURN(const std::string vote, AwaitVote(store, "planned", rank, deadline));
    votes[rank] = Vote::FromJson(vote);
    if (!votes[rank].error.empty()) break;
  }
  return CheckPlanned(votes);
}

Status SwitchParticipant::Build(TimePoint deadline) {
  const std::string epoch = EpochName(request_.id);
  DT_ASSIGN_OR_RETURN(
      std::unique_ptr<transport::Transport> transport,
      context_.groups->MakeTransport(epoch, ranks_, engine::PeersOf(program_), Left(deadline)));
  {
    const std::lock_guard lock(transport_mutex_);
    transport_ = std::move(transport);
  }
  if (!is_new()) return Status::Ok();
  for (const GroupSpec& spec : GroupsOfRank(to_->layout(), context_.rank)) {
    DT_ASSIGN_OR_RETURN(next_->groups[spec.axis],
                        context_.groups->MakeGroup(epoch, spec, Left(deadline)));
  }
  DT_ASSIGN_OR_RETURN(next_->host, context_.host->Prepare(*next_));
  return Status::Ok();
}

Status SwitchParticipant::VotePrepared(Store& store, TimePoint deadline) {
  DT_RETURN_IF_ERROR(Put(store, Key("prepared", context_.rank), Vote{}.ToJson()));
  for (const RankId rank : ranks_) {
    DT_ASSIGN_OR_RETURN(const std::string text, AwaitVote(store, "prepared", rank, deadline));
    const Vote vote = Vote::FromJson(text);
    if (!vote.error.empty()) return Aborted("rank {}: {}", rank, vote.error);
  }
  return Status::Ok();
}

Duration SwitchParticipant::Left(TimePoint deadline) const {
  return std::max(deadline - context_.clock->Now(), Duration(std::chrono::milliseconds(1)));
}

}  // namespace dynatrain::elastic
