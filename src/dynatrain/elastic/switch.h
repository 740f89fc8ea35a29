// The switch: how all ranks of a job go from one layout to another, or all stay.
//
//   Stable ──request──▶ Preparing ──all prepared──▶ Prepared ──agreed at a step──▶ Moving
//   Moving ──decision: commit──▶ Committed
//   Preparing, Prepared or Moving ──decision: abort──▶ RolledBack
//   Moving, mode stream, memory given back already ──decision: abort──▶ Lost
//
// Participants: the ranks of the old and of the new layout. Everything they agree on is a key in
// the store, under "switch/<id>/"; ids count from 1 and are taken in order, one switch at a time:
//
//   request          what is asked for (SwitchRequest); written once, by launcher or scheduling rank
//   fits/<rank>      with a memory budget: what this rank needs with 1, 2, .. phases. All take the
//                    fewest with which everybody fits
//   planned/<rank>   vote of a background thread that could plan and has the memory: fingerprint of
//                    all inputs and message balance, or an error. Read by all before any group is
//                    built, so that a local failure costs no deadline
//   prepared/<rank>  vote of a background thread: groups, transport and host stand, or an error
//   move_before      the step before which state moves; for the ranks that do not train now
//   job_state        step, data position, ... of the lowest old rank; a newcomer is never the source
//   role_state/<rank>  what an old rank keeps for its coordinates alone (random streams, ...), if the
//                    host has such a thing; for whoever has these coordinates next
//   tied/<rank>      mode stream, tied tensors: sums over this old rank's copies of them
//   moving           mode stream: somebody may give memory back from now on
//   verified/<rank>  vote after moving and checking: what this rank adds to the digests and to the
//                    check of tied tensors, or an error
//   decision         "commit" or "abort: why"; first writer wins
//   remains/<rank>   mode stream, decided abort while moving: how far this rank came
//   outcome          mode stream, after remains: "rolled_back", or what is lost; first writer wins
//   report/<rank>    what the switch cost here; the last thing a participant writes
//
// request, decision and outcome stay; the rest is deleted once all reports are in.
//
// Rules. commit is written only by the coordinator (lowest old rank), only after all verified votes
// are Ok, the copies of tied tensors agree, digests before and after are equal and the replica
// check is zero. Anyone may try
// abort: whoever sees a failed vote or passes a deadline. Nobody trains, frees old state or reports
// an outcome before reading the decision. A rank that cannot reach the store stops (kUnavailable);
// it never guesses. Old storage is never written before the decision, so RolledBack leaves every
// survivor with its old state, bit for bit.
//
// Mode stream gives old memory back while it moves, so an abort may find no old state to go back
// to. Each rank sets `moving` before it gives anything back and then looks for a decision; who
// aborts writes the decision and then looks for `moving`: either no memory goes, or all settle the
// outcome by what they wrote to `remains`. If a survivor has given memory back, the switch is Lost
// and the boxes that no survivor holds in either layout are named; all stop with that message.
//
// Nothing here starts a thread or knows a process: all of it runs by seed in one process
// (switch_test.cc).
#ifndef DYNATRAIN_ELASTIC_SWITCH_H_
#define DYNATRAIN_ELASTIC_SWITCH_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/elastic/groups.h"
#include "dynatrain/elastic/store.h"
#include "dynatrain/engine/budget.h"
#include "dynatrain/engine/derive.h"
#include "dynatrain/engine/executor.h"
#include "dynatrain/engine/remains.h"
#include "dynatrain/engine/state.h"
#include "dynatrain/planner/route.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/transport/transport.h"
#include "dynatrain/vps/digest.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::elastic {

struct SwitchRequest {
  int64_t id = 0;
  std::string spec;            // canonical SPEC of the new layout
  int64_t requested_step = 0;  // last finished step when it was asked for
  std::string ToJson() const;
  static Result<SwitchRequest> FromJson(const std::string& json);
};

// All a rank has in one layout. Owned by the SwitchAgent; the host keeps references only while it
// is current.
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
  // Background thread, while training goes on in the old layout: builds what depends on the new
  // layout but not on the values (module views, gradient buffers). instance.state has its memory,
  // its values come later. Only for active ranks.
  virtual Result<std::shared_ptr<void>> Prepare(const LayoutInstance& instance) = 0;
  // Training thread at a step boundary: the replicated job state (step, data position, ...) as
  // bytes, equal on all ranks.
  virtual std::string JobState() = 0;
  // Whether the loop keeps something for each rank's coordinates (dp, pp, tp, ...) in the layout
  // that is no tensor, such as the states of random streams. The same on all ranks.
  virtual bool has_role_state() const { return false; }
  // If so, on the training thread after JobState: the bytes of this rank's. Whoever has the same
  // coordinates after the switch is given them (SwitchParticipant::role_state); who has coordinates
  // that were not there gets none and starts from what is the same in every run, RoleSeed.
  virtual std::string RoleState() { return {}; }
};

// A seed for a random stream of the rank with these coordinates, where a stream begins with `step`
// (0: the job's first): a function of its arguments, different (up to chance) if any of them is.
// Leave out of `role` (as 0) what the stream is to be equal over; `stream` tells streams apart.
uint64_t RoleSeed(uint64_t job_seed, std::string_view stream, const vps::Role& role, int64_t step);

// Equal on all ranks.
struct SwitchOptions {
  engine::Mode mode = engine::Mode::kKeep;
  // Most bytes above the larger of old and new state that a rank may take; none: no limit.
  std::optional<ByteCount> budget = {};
  int32_t phases = 1;  // at least so many; a budget may need more
  engine::Verify verify = engine::Verify::kMoved;
  engine::Fill fill = engine::Fill::kZero;
  // bf16 parameters are computed from their new masters where a rank has those, instead of moved.
  // The host promises that they are the rounded masters (to nearest even) at every step boundary.
  bool derive = false;
  // For groups, transport and host, from the moment that all have planned; the wait for all plans
  // takes twice as long at most, since others may still be stuck in a switch before this one.
  Duration prepare_timeout = std::chrono::seconds(120);
  Duration move_timeout =
      std::chrono::seconds(30);  // for each wait while moving, and for the decision
  Duration agree_timeout =
      std::chrono::seconds(600);  // from all prepared to the agreed step, for idle ranks
  Duration heartbeat = std::chrono::milliseconds(200);  // how often a wait looks at the decision
  Duration poll = std::chrono::milliseconds(
      2);  // how often an idle rank's thread looks at its background thread
  Duration report_timeout = std::chrono::seconds(
      10);  // how long a merged report waits for the ranks that still owe theirs
};

enum class Outcome { kCommitted, kRolledBack, kLost };
std::string_view OutcomeName(Outcome outcome);   // "committed", "rolled_back", "lost"
Outcome OutcomeFromName(std::string_view name);  // whatever else is rolled back

// What a rank reports of one switch; merged over ranks into one SwitchReport (seconds: the maximum;
// bytes moved and kept: the sum; peak: the maximum).
struct SwitchReport {
  int64_t id = 0;
  int64_t step = 0;  // last step in the old layout
  int64_t requested_step = 0;
  std::string from, to;
  Outcome outcome = Outcome::kRolledBack;
  std::string reason;             // of a roll-back or a loss
  std::vector<std::string> lost;  // kLost: tensors and boxes that nobody holds any more
  double prepare_seconds = 0;
  double pause_seconds = 0;  // end of the last old step to the start of the first new one
  double first_step_excess_seconds = 0;  // first new step minus the median of later ones
  // Shares of the pause.
  double execute_seconds = 0, verify_seconds = 0, decide_seconds = 0, activate_seconds = 0;
  ByteCount moved_bytes = 0, kept_bytes = 0, peak_extra_bytes = 0;
  int32_t phases = 0;
  uint64_t digest_before = 0, digest_after = 0;  // kFull only, else 0
  uint64_t replica_check = 0;                    // kFull only; 0 is right
  std::string ToJson() const;
  static Result<SwitchReport> FromJson(const std::string& json);
};

// The merged report of all ranks. Precondition: not empty.
SwitchReport MergeReports(const std::vector<SwitchReport>& reports);

// The decision of a switch, as written and read in the store.
struct Decision {
  bool commit = false;
  std::string reason;                                 // of an abort
  std::string ToText() const;                         // "commit", "abort: why"
  static Decision FromText(const std::string& text);  // whatever is not "commit" is an abort
};

// How far a rank came in a switch of mode stream, as written in the store.
struct RemainsNote {
  engine::ExecutionProgress progress;
  engine::Granularity granularity;  // of the rank's program
  bool gave_back = false;
  std::string ToJson() const;
  static Result<RemainsNote> FromJson(const std::string& json);
};

// What became of a switch of mode stream that was aborted while moving.
struct Settlement {
  Outcome outcome = Outcome::kRolledBack;
  std::vector<std::string> lost;
  std::string ToText() const;
  static Settlement FromText(const std::string& text);
};

// The names of a switch's keys.
std::string SwitchKey(int64_t id, std::string_view name);               // "switch/7/decision"
std::string SwitchKey(int64_t id, std::string_view name, RankId rank);  // "switch/7/prepared/3"

// One rank's part in one switch; a blocking state machine. Prepare and Move run on the threads
// named, one after the other.
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
    Clock* clock;
  };

  SwitchParticipant(Context context, SwitchRequest request,
                    std::shared_ptr<LayoutInstance> current);
  ~SwitchParticipant();
  SwitchParticipant(const SwitchParticipant&) = delete;
  SwitchParticipant& operator=(const SwitchParticipant&) = delete;

  const SwitchRequest& request() const { return request_; }

  // Old and new ranks, ascending; the old ones alone if the request asks for no possible layout.
  const std::vector<RankId>& participants() const { return ranks_; }

  // Who merges the reports, once decided: the lowest new rank if committed, else the lowest old
  // one.
  RankId reporter() const;

  // Whether this rank takes part; if not, only AwaitDecision makes sense.
  bool participates() const;

  // Background thread: everything that can be done while training goes on: maps, route, program,
  // memory, groups, transport, host; then votes and waits for the votes of all. Ok: this rank may
  // say "ready". kUnavailable: the store is lost. kAborted, with the reason: the switch is decided
  // abort in the store and the old layout goes on. kDataLoss: the switch is Lost.
  Status Prepare(Store& store);

  // Training thread of an old rank at the boundary after `step` at which all were ready; or of an
  // idle rank, which first waits for move_before (step < 0). Moves, checks, votes, obeys the
  // decision. Returns the outcome, kUnavailable if the store is lost. Committed: next() is the new
  // instance (active or idle).
  Result<Outcome> Move(Store& store, int64_t step);

  // Waits up to `slice` for the decision; none if there is none yet. Committed on a rank that takes
  // no part: next() is its idle instance. Not while Prepare or Move runs.
  Result<std::optional<Outcome>> AwaitDecision(Store& store, Duration slice);

  // Tries to abort, for a rank that leaves between Prepare and Move; obeys what it reads.
  Result<Outcome> GiveUp(Store& store, const std::string& why);

  // Any thread. Stop: the rank leaves; a Prepare in progress decides abort and returns at its next
  // heartbeat. Cancel: the decision is known to be abort; a Move in progress stops waiting for its
  // peers.
  void Stop() { stopping_ = true; }
  void Cancel();

  std::shared_ptr<LayoutInstance> next() const { return next_; }
  const std::string& job_state() const {
    return job_state_;
  }  // after a committed Move: what all go on from
  // After a committed Move, for a new rank: Host::RoleState of the old rank with its coordinates.
  const std::optional<std::string>& role_state() const { return role_state_; }
  const SwitchReport& report() const { return report_; }
  // kDataLoss: which boxes are lost and why. Precondition: report().outcome is kLost.
  Status LostStatus() const;
  // When the pause began here (end of the last old step, or move_before seen) and when the decision
  // was read.
  TimePoint pause_began() const { return pause_began_; }
  TimePoint decided_at() const { return decided_at_; }

 private:
  struct Seen {  // what ended a wait: the key's value or the decision; neither: deadline or Stop
    std::optional<std::string> value;
    std::optional<Decision> decision;
  };

  Status Resolve();
  bool is_old() const;
  bool is_new() const;
  RankId coordinator() const;
  std::string Key(std::string_view name) const { return SwitchKey(request_.id, name); }
  std::string Key(std::string_view name, RankId rank) const {
    return SwitchKey(request_.id, name, rank);
  }

  // switch.cc: the store, with every loss of it noted in store_lost_.
  Status Lost(const Status& status);
  Status Put(Store& store, const std::string& key, const std::string& value);
  Result<Seen> Await(Store& store, const std::string& key, TimePoint deadline);
  // The value; an error if the wait ended otherwise. `what` names what was waited for.
  Result<std::string> AwaitValue(Store& store, const std::string& key, TimePoint deadline,
                                 std::string_view what);
  // The vote `name` of `rank`. If the deadline passes, the error names all that owe theirs.
  Result<std::string> AwaitVote(Store& store, std::string_view name, RankId rank,
                                TimePoint deadline);
  Result<Outcome> Decide(Store& store, const Decision& wanted);
  Result<Outcome> Obey(Store& store, const Decision& decision);
  Result<Outcome> AbortFor(Store& store, const Status& why);
  // The same before this rank has voted verified: nobody can have committed.
  Result<Outcome> AbortUnvoted(Store& store, const Status& why);

  // switch_settle.cc
  Status AgreeOnTies(Store& store);
  Status EnterMoving(Store& store);
  Result<Outcome> Settle(Store& store);
  Result<std::optional<Settlement>> GatherRemains(Store& store,
                                                  std::map<RankId, RemainsNote>* remains);
  Result<Settlement> SettlementOf(const std::map<RankId, RemainsNote>& remains) const;

  // switch_prepare.cc
  Status PrepareSteps(Store& store);
  Status PlanRoute();
  Status AgreeOnGranularity(Store& store, TimePoint deadline);
  Status Plan();
  Status VotePlanned(Store& store, TimePoint deadline);
  Status Build(TimePoint deadline);
  Status VotePrepared(Store& store, TimePoint deadline);
  Duration Left(TimePoint deadline) const;

  // switch_move.cc
  Status AwaitMoveBefore(Store& store);
  Status MoveState(Store& store, int64_t step);
  Result<Outcome> Conclude(Store& store);
  Result<Outcome> AwaitOutcome(Store& store);
  Status TakeRoleState(Store& store);

  const Context context_;
  const SwitchRequest request_;
  const std::shared_ptr<LayoutInstance> current_;

  Status resolved_;  // why the request cannot be met
  std::shared_ptr<const vps::LayoutShardMap> to_;
  std::vector<RankId> old_ranks_, new_ranks_, ranks_;  // ascending

  planner::Route route_;
  engine::CompileOptions compile_;
  engine::Program program_;
  std::vector<engine::Derivation> derivations_;
  engine::ExecutionProgress progress_;
  std::unique_ptr<engine::Staging> staging_;
  std::string stage_vote_;      // the vote that this rank owes at the moment
  std::mutex transport_mutex_;  // transport_ itself; its use needs no lock
  std::unique_ptr<transport::Transport> transport_;
  std::shared_ptr<LayoutInstance> next_;
  std::string job_state_;
  std::optional<std::string> role_state_;  // own old one until the decision
  vps::StateDigest digest_before_, digest_after_;
  engine::TieSums ties_;

  std::atomic<bool> stopping_ = false;
  Status store_lost_;
  std::optional<Decision> decision_;
  SwitchReport report_;
  TimePoint pause_began_{}, decided_at_{};
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SWITCH_H_
