// The switch: how all ranks of a job go from one layout to another, or all stay.
//
//   Stable ──request──▶ Preparing ──all prepared──▶ Prepared ──agreed at a step──▶ Moving ──decision──▶ Committed
//                           │                           │                            └────decision──▶ RolledBack
//                           └────────── decision: abort ┴──────────────────────────────────────────▶ RolledBack
//
// Participants: the ranks of the old and of the new layout. Everything they agree on is a key in the store, under
// "switch/<id>/"; ids count from 1 and are taken in order, one switch at a time:
//   request           what is asked for (SwitchRequest); written once by the launcher or the scheduling rank
//   prepared/<rank>   vote of a background thread: fingerprint of all inputs and message balance, or an error
//   move_before       the step before which state moves; for the ranks that do not train now
//   job_state         step, data position, ... written by the lowest old rank; a newcomer is never the source
//   verified/<rank>   vote after moving and checking, with this rank's digest contributions, or an error
//   decision          "commit" or "abort: why"; first writer wins
//   report/<rank>     what the switch cost here
//
// Rules. commit is written only by the coordinator (lowest old rank), only after all verified votes are Ok, their digests
// before and after are equal and the replica check is zero. Anyone may try abort: whoever sees a failed vote or passes a
// deadline. Nobody trains, frees old state or reports an outcome before reading the decision. A rank that cannot reach
// the store stops (kUnavailable); it never guesses. Old storage is never written before the decision, so RolledBack
// leaves every survivor with its old state, bit for bit.
//
// Nothing here starts a thread or knows a process: all of it runs by seed in one process (switch_test.cc).
#ifndef DYNATRAIN_ELASTIC_SWITCH_H_
#define DYNATRAIN_ELASTIC_SWITCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/elastic/groups.h"
#include "dynatrain/elastic/store.h"
#include "dynatrain/engine/executor.h"
#include "dynatrain/engine/state.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::elastic {

struct SwitchRequest {
  int64_t id = 0;
  std::string spec;             // canonical SPEC of the new layout
  int64_t requested_step = 0;   // last finished step when it was asked for
  std::string ToJson() const;
  static Result<SwitchRequest> FromJson(const std::string& json);
};

// All a rank has in one layout. Owned by the SwitchAgent; the host keeps references only while it is current.
struct LayoutInstance {
  int64_t epoch = 0;  // 0: the first layout; else the id of the switch that made it
  std::shared_ptr<const vps::LayoutShardMap> map;
  RankId rank = 0;
  engine::StateBuffers state;
  GroupSet groups;             // empty if this rank is idle in the layout
  std::shared_ptr<void> host;  // what Host::Prepare returned

  bool active() const { return map->layout().PositionOfRank(rank).has_value(); }
};

// SEAM. The training loop's owner.
class Host {
 public:
  virtual ~Host() = default;
  // Whether training can go on in this layout (heads, batch divisibility, ...). Pure; any thread.
  virtual Status CheckLayout(const vps::Layout& layout) = 0;
  // Background thread, while training goes on in the old layout: builds what depends on the new layout but not on the
  // values (module views, gradient buffers). instance.state has its memory, its values come later. Only for active ranks.
  virtual Result<std::shared_ptr<void>> Prepare(const LayoutInstance& instance) = 0;
  // Training thread at a step boundary: the replicated job state (step, data position, ...) as bytes, equal on all ranks.
  virtual std::string JobState() = 0;
};

struct SwitchOptions {
  engine::Verify verify = engine::Verify::kMoved;
  engine::Fill fill = engine::Fill::kZero;
  Duration prepare_timeout = std::chrono::seconds(120);
  Duration move_timeout = std::chrono::seconds(30);     // for each wait while moving, and for the decision
  Duration agree_timeout = std::chrono::seconds(600);   // from all prepared to the agreed step, for idle ranks
};

enum class Outcome { kCommitted, kRolledBack };
std::string_view OutcomeName(Outcome outcome);  // "committed", "rolled_back"

// What a rank reports of one switch; merged over ranks into one SwitchReport (seconds: the maximum; bytes moved
// and kept: the sum; peak: the maximum).
struct SwitchReport {
  int64_t id = 0;
  int64_t step = 0;  // last step in the old layout
  int64_t requested_step = 0;
  std::string from, to;
  Outcome outcome = Outcome::kRolledBack;
  std::string reason;  // of a roll-back
  double prepare_seconds = 0;
  double pause_seconds = 0;               // end of the last old step to the start of the first new one
  double first_step_excess_seconds = 0;   // first new step minus the median of later ones
  // Shares of the pause.
  double execute_seconds = 0, verify_seconds = 0, decide_seconds = 0, activate_seconds = 0;
  ByteCount moved_bytes = 0, kept_bytes = 0, peak_extra_bytes = 0;
  uint64_t digest_before = 0, digest_after = 0;  // kFull only, else 0
  uint64_t replica_check = 0;                    // kFull only; 0 is right
  std::string ToJson() const;
  static Result<SwitchReport> FromJson(const std::string& json);
};

// One rank's part in one switch; a blocking state machine. Prepare and Move run on the threads named, one after the other.
class SwitchParticipant {
 public:
  struct Context {
    RankId rank;
    int32_t num_ranks;  // started processes
    std::shared_ptr<const vps::StateCatalog> catalog;
    planner::Topology topology;
    SwitchOptions options;
    Host* host;
    GroupFactory* groups;
    const Clock* clock;
  };

  SwitchParticipant(Context context, SwitchRequest request, std::shared_ptr<LayoutInstance> current);

  // Whether this rank takes part; if not, only AwaitDecision makes sense.
  bool participates() const;

  // Background thread: everything that can be done while training goes on: maps, route, program, memory, groups, transport,
  // host; then votes and waits for the votes of all. Ok: this rank may say "ready". Any error: the switch is decided
  // abort in the store (or the store is lost) and the old layout goes on.
  Status Prepare(Store& store);

  // Training thread of an old rank at the boundary after `step` at which all were ready; or of an idle rank, which first
  // waits for move_before (step < 0). Moves, checks, votes, obeys the decision. Returns the outcome, kUnavailable if the
  // store is lost. Committed: next() is the new instance (active or idle).
  Result<Outcome> Move(Store& store, int64_t step);

  std::shared_ptr<LayoutInstance> next() const;
  const std::string& job_state() const;  // after a committed Move: what the newcomers go on from
  const SwitchReport& report() const;
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SWITCH_H_
