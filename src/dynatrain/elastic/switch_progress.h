// SwitchProgress: how far switches are that nobody has reported yet, and whom they wait for, read
// from their keys in the store by one who takes no part.
#ifndef DYNATRAIN_ELASTIC_SWITCH_PROGRESS_H_
#define DYNATRAIN_ELASTIC_SWITCH_PROGRESS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/elastic/store.h"
#include "dynatrain/elastic/switch.h"

namespace dynatrain::elastic {

enum class SwitchStage {
  kQueued,     // waits for the switches before it
  kPreparing,  // waits for memory needs `fits` if there is a budget, votes `planned`, votes `prepared`
  kPrepared,  // waits for the step at which all active ranks say so
  kMoving,    // waits for votes `verified` and the decision
  kDecided    // committed or rolled back; waits for reports
};
std::string_view SwitchStageName(SwitchStage stage);  // "preparing", ...

struct SwitchProgress {
  SwitchStage stage = SwitchStage::kPreparing;
  // Participants whose vote of this stage is missing, ascending. Votes `prepared` come in only once
  // groups stand, so a rank that is stuck in those keeps their other members in this list.
  std::vector<RankId> waiting_for;
};

// Of a switch whose turn it is. `participants`: its old and new ranks, ascending. Errors are the
// store's.
Result<SwitchProgress> ReadProgress(Store& store, int64_t id,
                                    const std::vector<RankId>& participants);

struct PendingSwitch {
  SwitchRequest request;
  SwitchProgress progress;
};

// Of `requests`, which are those without a report in the order of their ids, in a job that trains in
// `layout`, a SPEC. Errors are the store's.
Result<std::vector<PendingSwitch>> ReadPending(Store& store, std::string layout,
                                               const std::vector<SwitchRequest>& requests);

// Those of `ranks` that have not written their vote `name` ("planned", "prepared", "verified").
Result<std::vector<RankId>> MissingVotes(Store& store, int64_t id, std::string_view name,
                                         const std::vector<RankId>& ranks);

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SWITCH_PROGRESS_H_
