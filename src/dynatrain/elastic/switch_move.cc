// The part of a switch that training waits for: move, check, vote, obey the decision.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "dynatrain/base/hash.h"
#include "dynatrain/elastic/switch.h"
#include "dynatrain/elastic/switch_votes.h"

namespace dynatrain::elastic {
namespace {

vps::StateDigest DigestOf(const vps::ShardMap& map, RankId rank, const engine::StateBuffers& state,
                          uint64_t key) {
  return vps::DigestOfRank(
      map, rank, [&state](vps::BufferIndex index) { return state.bytes(index); }, key);
}

}  // namespace

Result<Outcome> SwitchParticipant::Move(Store& store, int64_t step) {
  DT_CHECK(participates() && is_old() == (step >= 0));
  if (!is_old()) {
    if (const Status began = AwaitMoveBefore(store); !began.ok()) return AbortUnvoted(store, began);
  }
  pause_began_ = context_.clock->Now();
  if (const Status moved = MoveState(store, step); !moved.ok()) return AbortUnvoted(store, moved);

  Vote vote;
  vote.is_old = is_old();
  vote.job_state_hash = Hasher().Add(job_state_).hash();
  vote.before = digest_before_;
  vote.after = digest_after_;
  vote.ties = ties_;
  const TimePoint verified = context_.clock->Now();
  DT_RETURN_IF_ERROR(Put(store, Key("verified", context_.rank), vote.ToJson()));
  stage_vote_.clear();
  Result<Outcome> outcome = context_.rank == coordinator() ? Conclude(store) : AwaitOutcome(store);
  if (outcome.ok() && *outcome == Outcome::kCommitted) DT_RETURN_IF_ERROR(TakeRoleState(store));
  report_.decide_seconds = ToSeconds(context_.clock->Now() - verified);
  return outcome;
}

Status SwitchParticipant::AwaitMoveBefore(Store& store) {
  const TimePoint deadline = context_.clock->Now() + context_.options.agree_timeout;
  DT_ASSIGN_OR_RETURN(const std::string step, AwaitValue(store, Key("move_before"), deadline,
                                                         "step at which all ranks are ready"));
  report_.step = std::atoll(step.c_str()) - 1;
  return Status::Ok();
}

Status SwitchParticipant::MoveState(Store& store, int64_t step) {
  if (is_old()) {
    report_.step = step;
    job_state_ = context_.host->JobState();
    if (context_.rank == coordinator()) {
      DT_RETURN_IF_ERROR(Put(store, Key("job_state"), job_state_));
      DT_RETURN_IF_ERROR(Put(store, Key("move_before"), fmt::format("{}", step + 1)));
    }
    if (context_.host->has_role_state()) {
      role_state_ = context_.host->RoleState();
      DT_RETURN_IF_ERROR(Put(store, Key("role_state", context_.rank), *role_state_));
    }
  }
  DT_RETURN_IF_ERROR(AgreeOnTies(store));
  DT_RETURN_IF_ERROR(EnterMoving(store));
  const bool full = context_.options.verify == engine::Verify::kFull;
  const uint64_t digest_key = Hasher().Add(program_.inputs_fingerprint).Add(request_.id).hash();
  const TimePoint began = context_.clock->Now();
  if (full && is_old()) {
    digest_before_ = DigestOf(*current_->map, context_.rank, current_->state, digest_key);
  }
  const TimePoint execute_began = context_.clock->Now();
  DT_ASSIGN_OR_RETURN(const engine::ExecutionReport execution,
                      engine::Execute(program_, current_->state, &next_->state, *transport_,
                                      staging_.get(), context_.options.verify, *context_.clock,
                                      context_.options.move_timeout, &progress_));
  engine::Derive(derivations_, &next_->state);
  const TimePoint execute_ended = context_.clock->Now();
  ties_ = execution.ties;
  if (full && is_new()) {
    digest_after_ = DigestOf(*to_, context_.rank, next_->state, digest_key);
  }
  report_.execute_seconds = ToSeconds(execute_ended - execute_began - execution.check);
  report_.verify_seconds = ToSeconds(context_.clock->Now() - began) - report_.execute_seconds;
  return Status::Ok();
}

Result<Outcome> SwitchParticipant::Conclude(Store& store) {
  const TimePoint deadline = context_.clock->Now() + context_.options.move_timeout;
  Votes votes;
  for (const RankId rank : ranks_) {
    const Result<std::string> text = AwaitVote(store, "verified", rank, deadline);
    if (!text.ok()) return AbortFor(store, text.status());
    votes[rank] = Vote::FromJson(*text);
    if (!votes[rank].error.empty()) break;
  }
  const VerifiedSum sum = CheckVerified(votes, context_.options.verify);
  report_.digest_before = sum.before.digest;
  report_.digest_after = sum.after.digest;
  report_.replica_check = std::max(sum.before.replica, sum.after.replica);
  return Decide(store, {sum.status.ok(), sum.status.message()});
}

Result<Outcome> SwitchParticipant::AwaitOutcome(Store& store) {
  const TimePoint deadline = context_.clock->Now() + context_.options.move_timeout;
  if (!is_old()) {
    // Written before move_before, so it is there; read while the others' votes come in.
    const Result<std::optional<std::string>> job_state = store.TryGet(Key("job_state"));
    if (!job_state.ok()) return Lost(job_state.status());
    if (!job_state->has_value()) return Internal("switch {}: no job state", request_.id);
    job_state_ = **job_state;
  }
  const Result<Seen> seen = Await(store, Key("decision"), deadline);
  if (!seen.ok()) return seen.status();
  if (seen->value) return Obey(store, Decision::FromText(*seen->value));
  if (seen->decision) return Obey(store, *seen->decision);
  return AbortFor(store, DeadlineExceeded("no decision within {} s of its vote",
                                          ToSeconds(context_.options.move_timeout)));
}

// After a commit. The old rank wrote its role state before its vote, and the key stays until this
// rank has reported.
Status SwitchParticipant::TakeRoleState(Store& store) {
  const std::optional<std::string> own = std::exchange(role_state_, std::nullopt);
  const std::optional<vps::Role> role = to_->layout().RoleOfRank(context_.rank);
  if (!context_.host->has_role_state() || !role) return {};
  const vps::Layout& old = current_->map->layout();
  const bool was_there =
      role->tp < old.tp && role->dp < old.dp && role->pp < old.pp && role->cp < old.cp;
  if (!was_there) return {};
  const RankId holder = old.RankAt(old.PositionOf(*role));
  if (holder == context_.rank) {
    role_state_ = own;
    return {};
  }
  const Result<std::optional<std::string>> told = store.TryGet(Key("role_state", holder));
  if (!told.ok()) return Lost(told.status());
  if (!told->has_value())
    return Internal("switch {}: no role state of rank {}", request_.id, holder);
  role_state_ = *told;
  return {};
}

uint64_t RoleSeed(uint64_t job_seed, std::string_view stream, const vps::Role& role, int64_t step) {
  return Hasher()
      .Add("role seed")
      .Add(job_seed)
      .Add(stream)
      .Add(role.tp)
      .Add(role.dp)
      .Add(role.pp)
      .Add(role.cp)
      .Add(step)
      .hash();
}

}  // namespace dynatrain::elastic
