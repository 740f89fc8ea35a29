// What becomes of a switch of mode stream that is aborted while memory may have been given back.
#include <algorithm>

#include <fmt/ranges.h>

#include "dynatrain/elastic/switch.h"
#include "dynatrain/elastic/switch_votes.h"

namespace dynatrain::elastic {
namespace {

constexpr size_t kMostNamed = 200;

std::vector<std::string> Names(const vps::StateCatalog& catalog,
                               const std::vector<planner::Piece>& pieces) {
  std::vector<std::string> names;
  for (const planner::Piece& piece : pieces) {
    if (names.size() == kMostNamed) {
      names.push_back(fmt::format("and {} more", pieces.size() - kMostNamed));
      break;
    }
    names.push_back(fmt::format("{} {}", catalog.NameOf(piece.tensor), piece.box.ToString()));
  }
  return names;
}

}  // namespace

// Copies that differ are found while the old state is whole everywhere.
Status SwitchParticipant::AgreeOnTies(Store& store) {
  const SwitchOptions& options = context_.options;
  if (options.mode != engine::Mode::kStream || options.verify == engine::Verify::kOff ||
      !engine::HasTies(*context_.catalog)) {
    return Status::Ok();
  }
  if (is_old()) {
    Vote mine;
    mine.ties = engine::SumTies(program_, current_->state);
    DT_RETURN_IF_ERROR(Put(store, Key("tied", context_.rank), mine.ToJson()));
  }
  const TimePoint deadline = context_.clock->Now() + options.move_timeout;
  engine::TieSums sums;
  for (const RankId rank : old_ranks_) {
    DT_ASSIGN_OR_RETURN(const std::string text,
                        AwaitValue(store, Key("tied", rank), deadline,
                                   fmt::format("sums over tied tensors of rank {}", rank)));
    engine::AddTies(Vote::FromJson(text).ties, &sums);
  }
  return engine::CheckTies(sums);
}

// Either this rank sees a decision that was taken without knowing of it, or whoever decides later
// sees that ranks are moving.
Status SwitchParticipant::EnterMoving(Store& store) {
  if (context_.options.mode != engine::Mode::kStream) return Status::Ok();
  DT_RETURN_IF_ERROR(Put(store, Key("moving"), "yes"));
  const Result<std::optional<std::string>> text = store.TryGet(Key("decision"));
  if (!text.ok()) return Lost(text.status());
  if (!text->has_value()) return Status::Ok();
  decision_ = Decision::FromText(**text);
  return Aborted("{}", decision_->reason);
}

Result<Outcome> SwitchParticipant::Settle(Store& store) {
  if (context_.options.mode != engine::Mode::kStream) return Outcome::kRolledBack;
  const Result<std::optional<std::string>> moving = store.TryGet(Key("moving"));
  if (!moving.ok()) return Lost(moving.status());
  if (!moving->has_value()) return Outcome::kRolledBack;

  const bool gave_back = engine::GaveBack(program_, progress_);
  if (participates()) {
    const RemainsNote mine{progress_, {compile_.phases, compile_.granule_bytes}, gave_back};
    DT_RETURN_IF_ERROR(Put(store, Key("remains", context_.rank), mine.ToJson()));
  }
  std::map<RankId, RemainsNote> remains;
  DT_ASSIGN_OR_RETURN(std::optional<Settlement> settlement, GatherRemains(store, &remains));
  if (!settlement) {
    DT_ASSIGN_OR_RETURN(const Settlement wanted, SettlementOf(remains));
    const Result<std::string> text = store.SetIfAbsent(Key("outcome"), wanted.ToText());
    if (!text.ok()) return Lost(text.status());
    settlement = Settlement::FromText(*text);
  }
  report_.lost = settlement->lost;
  if (settlement->outcome == Outcome::kRolledBack && gave_back) {
    return DataLoss(
        "switch {}: rank {} was taken for dead and its old state is gone; it cannot go on",
        request_.id, context_.rank);
  }
  return settlement->outcome;
}

// How far all ranks came, as far as they tell in time; or the settlement, if there is one before.
Result<std::optional<Settlement>> SwitchParticipant::GatherRemains(
    Store& store, std::map<RankId, RemainsNote>* remains) {
  const TimePoint deadline = context_.clock->Now() + context_.options.move_timeout;
  for (const RankId rank : ranks_) {
    while (true) {
      const Result<std::optional<std::string>> settled = store.TryGet(Key("outcome"));
      if (!settled.ok()) return Lost(settled.status());
      if (settled->has_value()) return std::optional(Settlement::FromText(**settled));
      // A rank that came in time counts, whichever rank was waited for so long.
      const Duration left =
          std::max<Duration>(deadline - context_.clock->Now(), std::chrono::milliseconds(1));
      const Result<std::string> text =
          store.Wait(Key("remains", rank), std::min(left, context_.options.heartbeat));
      if (text.ok()) {
        DT_ASSIGN_OR_RETURN((*remains)[rank], RemainsNote::FromJson(*text));
        break;
      }
      if (text.status().code() != StatusCode::kDeadlineExceeded) return Lost(text.status());
      if (context_.clock->Now() >= deadline) break;
    }
  }
  return std::optional<Settlement>();
}

Result<Settlement> SwitchParticipant::SettlementOf(
    const std::map<RankId, RemainsNote>& remains) const {
  Settlement settlement;
  if (std::ranges::none_of(remains, [](const auto& entry) { return entry.second.gave_back; }))
    return settlement;
  settlement.outcome = Outcome::kLost;
  const vps::ShardMap& from = *current_->map;
  std::vector<planner::Piece> held;
  for (const auto& [rank, note] : remains) {
    engine::CompileOptions options;
    options.mode = context_.options.mode;
    note.granularity.ApplyTo(&options);
    DT_ASSIGN_OR_RETURN(const planner::Route route,
                        planner::PlanRoute(from, *to_, context_.topology, rank,
                                           {.derive = context_.options.derive}));
    DT_ASSIGN_OR_RETURN(const engine::Program program,
                        engine::Compile(route, from, *to_, context_.topology, ranks_, options));
    const std::vector<planner::Piece> of_rank = engine::RemainsOf(program, note.progress);
    held.insert(held.end(), of_rank.begin(), of_rank.end());
  }
  if (context_.options.derive) engine::AddDerivable(*context_.catalog, &held);
  settlement.lost = Names(*context_.catalog, engine::MissingFrom(*context_.catalog, held));
  return settlement;
}

Status SwitchParticipant::LostStatus() const {
  return DataLoss(
      "switch {} to {} is lost ({}): the state was partly given back, in mode stream, when it was "
      "called off; {}; go on from a checkpoint",
      request_.id, report_.to, report_.reason,
      report_.lost.empty()
          ? std::string("the survivors still hold every box, in two layouts")
          : fmt::format("nobody holds any more: {}", fmt::join(report_.lost, ", ")));
}

}  // namespace dynatrain::elastic
