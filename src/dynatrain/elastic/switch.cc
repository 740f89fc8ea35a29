#include "dynatrain/elastic/switch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/ranges.h>

#include "dynatrain/elastic/switch_progress.h"
#include "dynatrain/elastic/switch_votes.h"

namespace dynatrain::elastic {
namespace {

std::vector<RankId> Ascending(std::vector<RankId> ranks) {
  std::ranges::sort(ranks);
  return ranks;
}

bool Contains(const std::vector<RankId>& ranks, RankId rank) {
  return std::ranges::binary_search(ranks, rank);
}

}  // namespace

SwitchParticipant::SwitchParticipant(Context context, SwitchRequest request,
                                     std::shared_ptr<LayoutInstance> current)
    : context_(std::move(context)), request_(std::move(request)), current_(std::move(current)) {
  old_ranks_ = Ascending(current_->map->Ranks());
  ranks_ = old_ranks_;
  resolved_ = Resolve();
  if (resolved_.ok()) {
    new_ranks_ = Ascending(to_->Ranks());
    ranks_.clear();
    std::ranges::set_union(old_ranks_, new_ranks_, std::back_inserter(ranks_));
  }
  report_.id = request_.id;
  report_.step = request_.requested_step;
  report_.requested_step = request_.requested_step;
  report_.from = current_->map->layout().ToString();
  report_.to = resolved_.ok() ? to_->layout().ToString() : request_.spec;
}

// What is still under way may touch state and staging memory.
SwitchParticipant::~SwitchParticipant() { transport_.reset(); }

Status SwitchParticipant::Resolve() {
  DT_ASSIGN_OR_RETURN(const vps::Layout layout,
                      vps::ParseLayout(request_.spec, context_.num_ranks));
  DT_RETURN_IF_ERROR(layout.Validate(context_.catalog->num_layers(), context_.num_ranks));
  DT_ASSIGN_OR_RETURN(to_, vps::LayoutShardMap::Make(context_.catalog, layout));
  if (to_->Fingerprint() == current_->map->Fingerprint()) {
    return FailedPrecondition("already in this layout: {}", layout.ToString());
  }
  return Status::Ok();
}

bool SwitchParticipant::participates() const { return Contains(ranks_, context_.rank); }
bool SwitchParticipant::is_old() const { return Contains(old_ranks_, context_.rank); }
bool SwitchParticipant::is_new() const { return Contains(new_ranks_, context_.rank); }
RankId SwitchParticipant::coordinator() const { return old_ranks_.front(); }

RankId SwitchParticipant::reporter() const {
  return decision_ && decision_->commit ? new_ranks_.front() : old_ranks_.front();
}

Status SwitchParticipant::Lost(const Status& status) {
  store_lost_ = Unavailable("switch {}: the store is lost: {}", request_.id, status.message());
  return store_lost_;
}

Status SwitchParticipant::Put(Store& store, const std::string& key, const std::string& value) {
  const Status status = store.Set(key, value);
  return status.ok() ? status : Lost(status);
}

Result<SwitchParticipant::Seen> SwitchParticipant::Await(Store& store, const std::string& key,
                                                         TimePoint deadline) {
  while (true) {
    const Duration left = deadline - context_.clock->Now();
    if (left <= Duration::zero() || stopping_) return Seen{};
    Result<std::string> value = store.Wait(key, std::min(left, context_.options.heartbeat));
    if (value.ok()) return Seen{*std::move(value), {}};
    if (value.status().code() != StatusCode::kDeadlineExceeded) return Lost(value.status());
    const Result<std::optional<std::string>> decision = store.TryGet(Key("decision"));
    if (!decision.ok()) return Lost(decision.status());
    if (decision->has_value()) return Seen{{}, Decision::FromText(**decision)};
  }
}

Result<std::string> SwitchParticipant::AwaitValue(Store& store, const std::string& key,
                                                  TimePoint deadline, std::string_view what) {
  DT_ASSIGN_OR_RETURN(Seen seen, Await(store, key, deadline));
  if (seen.value) return *std::move(seen.value);
  if (seen.decision) {
    decision_ = seen.decision;
    return Aborted("{}", seen.decision->reason);
  }
  if (stopping_) return Aborted("rank {} leaves the job", context_.rank);
  return DeadlineExceeded("no {} within the deadline", what);
}

Result<std::string> SwitchParticipant::AwaitVote(Store& store, std::string_view name, RankId rank,
                                                 TimePoint deadline) {
  Result<std::string> vote = AwaitValue(store, Key(name, rank), deadline, name);
  if (vote.ok() || vote.status().code() != StatusCode::kDeadlineExceeded) return vote;
  const Result<std::vector<RankId>> missing = MissingVotes(store, request_.id, name, ranks_);
  if (!missing.ok()) return Lost(missing.status());
  if (missing->size() <= 1) {
    return DeadlineExceeded("no vote `{}` of rank {} within the deadline", name, rank);
  }
  return DeadlineExceeded("no vote `{}` of ranks {} within the deadline", name,
                          fmt::format("{}", fmt::join(*missing, ", ")));
}

Result<Outcome> SwitchParticipant::Decide(Store& store, const Decision& wanted) {
  const Result<std::string> text = store.SetIfAbsent(Key("decision"), wanted.ToText());
  if (!text.ok()) return Lost(text.status());
  return Obey(store, Decision::FromText(*text));
}

Result<Outcome> SwitchParticipant::Obey(Store& store, const Decision& decision) {
  decision_ = decision;
  decided_at_ = context_.clock->Now();
  report_.reason = decision.reason;
  report_.outcome = Outcome::kCommitted;
  if (decision.commit) return report_.outcome;
  {
    // Sends in flight read old state, which is about to be trained on again.
    const std::lock_guard lock(transport_mutex_);
    transport_.reset();
  }
  DT_ASSIGN_OR_RETURN(report_.outcome, Settle(store));
  return report_.outcome;
}

Result<Outcome> SwitchParticipant::AbortFor(Store& store, const Status& why) {
  if (!store_lost_.ok()) return store_lost_;
  if (decision_) return Obey(store, *decision_);
  if (!stage_vote_.empty()) {
    // Whoever waits for this vote learns of the failure without a deadline.
    DT_RETURN_IF_ERROR(
        Put(store, Key(stage_vote_, context_.rank), Vote::No(why.message()).ToJson()));
  }
  return Decide(store, {false, fmt::format("rank {}: {}", context_.rank, why.message())});
}

Result<Outcome> SwitchParticipant::AbortUnvoted(Store& store, const Status& why) {
  DT_ASSIGN_OR_RETURN(const Outcome outcome, AbortFor(store, why));
  if (outcome == Outcome::kCommitted) {
    return Internal("switch {} is committed without the vote of rank {}", request_.id,
                    context_.rank);
  }
  return outcome;
}

Result<std::optional<Outcome>> SwitchParticipant::AwaitDecision(Store& store, Duration slice) {
  if (!decision_) {
    const Result<std::string> text = store.Wait(Key("decision"), slice);
    if (!text.ok() && text.status().code() == StatusCode::kDeadlineExceeded) {
      return std::optional<Outcome>();
    }
    if (!text.ok()) return Lost(text.status());
    decision_ = Decision::FromText(*text);
  }
  if (decision_->commit && !next_) {
    if (!resolved_.ok())
      return Internal("switch {} is committed but {}", request_.id, resolved_.message());
    next_ = std::make_shared<LayoutInstance>();
    next_->epoch = request_.id;
    next_->map = to_;
    next_->rank = context_.rank;
  }
  DT_ASSIGN_OR_RETURN(const Outcome outcome, Obey(store, *decision_));
  return std::optional<Outcome>(outcome);
}

Result<Outcome> SwitchParticipant::GiveUp(Store& store, const std::string& why) {
  stage_vote_.clear();
  return AbortUnvoted(store, Aborted("{}", why));
}

void SwitchParticipant::Cancel() {
  const std::lock_guard lock(transport_mutex_);
  if (transport_) transport_->Abort();
}

}  // namespace dynatrain::elastic
