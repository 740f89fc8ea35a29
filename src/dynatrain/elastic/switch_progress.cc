#include "dynatrain/elastic/switch_progress.h"

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "dynatrain/vps/layout.h"

namespace dynatrain::elastic {
namespace {

// Old and new ranks, ascending; a SPEC that is none has no ranks.
std::vector<RankId> Participants(const std::string& from, const std::string& to) {
  std::set<RankId> ranks;
  for (const std::string& spec : {from, to}) {
    const Result<vps::Layout> layout = vps::ParseLayout(spec);
    if (!layout.ok()) continue;
    for (const RankId rank : layout->Ranks()) ranks.insert(rank);
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace

std::string_view SwitchStageName(SwitchStage stage) {
  switch (stage) {
    case SwitchStage::kQueued:
      return "queued";
    case SwitchStage::kPreparing:
      return "preparing";
    case SwitchStage::kPrepared:
      return "prepared";
    case SwitchStage::kMoving:
      return "moving";
    case SwitchStage::kDecided:
      return "decided";
  }
  return "unknown";
}

Result<std::vector<RankId>> MissingVotes(Store& store, int64_t id, std::string_view name,
                                         const std::vector<RankId>& ranks) {
  std::vector<RankId> missing;
  for (const RankId rank : ranks) {
    DT_ASSIGN_OR_RETURN(const std::optional<std::string> vote,
                        store.TryGet(SwitchKey(id, name, rank)));
    if (!vote) missing.push_back(rank);
  }
  return missing;
}

Result<SwitchProgress> ReadProgress(Store& store, int64_t id,
                                    const std::vector<RankId>& participants) {
  const auto has = [&](std::string_view name) -> Result<bool> {
    DT_ASSIGN_OR_RETURN(const std::optional<std::string> value, store.TryGet(SwitchKey(id, name)));
    return value.has_value();
  };
  // From the last stage to the first: a switch may go on while its keys are read.
  DT_ASSIGN_OR_RETURN(const bool decided, has("decision"));
  if (decided) return SwitchProgress{SwitchStage::kDecided, {}};
  DT_ASSIGN_OR_RETURN(const bool moving, has("move_before"));
  if (moving) {
    DT_ASSIGN_OR_RETURN(const auto missing, MissingVotes(store, id, "verified", participants));
    return SwitchProgress{SwitchStage::kMoving, missing};
  }
  // Only with a budget; before anybody has written it, both ways look the same.
  DT_ASSIGN_OR_RETURN(const auto unfit, MissingVotes(store, id, "fits", participants));
  if (!unfit.empty() && unfit.size() < participants.size())
    return SwitchProgress{SwitchStage::kPreparing, unfit};
  for (const std::string_view vote : {"planned", "prepared"}) {
    DT_ASSIGN_OR_RETURN(const auto missing, MissingVotes(store, id, vote, participants));
    if (!missing.empty()) return SwitchProgress{SwitchStage::kPreparing, missing};
  }
  return SwitchProgress{SwitchStage::kPrepared, {}};
}

Result<std::vector<PendingSwitch>> ReadPending(Store& store, std::string layout,
                                               const std::vector<SwitchRequest>& requests) {
  std::vector<PendingSwitch> pending;
  bool its_turn = true;
  for (const SwitchRequest& request : requests) {
    PendingSwitch& next = pending.emplace_back(PendingSwitch{request, {SwitchStage::kQueued, {}}});
    if (!its_turn) continue;
    DT_ASSIGN_OR_RETURN(next.progress,
                        ReadProgress(store, request.id, Participants(layout, request.spec)));
    its_turn = next.progress.stage == SwitchStage::kDecided;
    if (!its_turn) continue;
    DT_ASSIGN_OR_RETURN(const auto decision, store.TryGet(SwitchKey(request.id, "decision")));
    if (decision && Decision::FromText(*decision).commit) layout = request.spec;
  }
  return pending;
}

}  // namespace dynatrain::elastic
