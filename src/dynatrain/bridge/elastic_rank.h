// ElasticRank: this process as one rank of a job that changes its layout while it runs, for a
// training loop of any kind. It owns what is not training: store, groups, state memory, switches.
//
//   auto rank = ElasticRank::Join(parameters, &host, {.layout = "tp=2"});   // a Result
//   int64_t step = 0;
//   while (step < steps) {
//     if (rank->active()) step = Train(rank->current(), step + 1);
//     auto boundary = rank->AtStepBoundary(step);      // an idle rank waits in here
//     if (boundary.what == kJobEnded) break;
//     if (boundary.what == kCommitted && rank->active()) step = Restore(boundary.job_state);
//   }
//   rank->End("done");
//
// The host (elastic::Host) tells which layouts fit, builds modules and optimizers over the memory of
// a new layout (LocalTensor) while the old one still trains, and gives the bytes that newcomers
// learn step and data position from.
#ifndef DYNATRAIN_BRIDGE_ELASTIC_RANK_H_
#define DYNATRAIN_BRIDGE_ELASTIC_RANK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/bridge/rank_environment.h"
#include "dynatrain/elastic/agent.h"

namespace dynatrain::bridge {

struct ElasticRankOptions {
  std::string layout;  // SPEC of the first layout; ranks it does not use are idle
  elastic::SwitchOptions switching = {};
  planner::Topology topology = {};
  // For the store, each group, and at the end for the other ranks to leave.
  Duration join_timeout = std::chrono::seconds(60);
  // Called on one rank once per switch, on a background thread, with the report of all ranks.
  std::function<void(const elastic::SwitchReport&)> on_report = {};
};

// All methods are for the training thread.
class ElasticRank {
 public:
  // Collective over all ranks of the job. State memory is zero and host->Prepare has been called on
  // it: first values are the loop's to write. The catalog must be equal on all ranks; `host`
  // outlives this object. kInvalidArgument, with the reason, for a layout that does not fit catalog
  // or ranks; what host->CheckLayout says; kDeadlineExceeded, naming who did not come.
  static Result<std::unique_ptr<ElasticRank>> Join(const RankEnvironment& environment,
                                                   std::shared_ptr<const vps::StateCatalog> catalog,
                                                   elastic::Host* host,
                                                   const ElasticRankOptions& options);
  // The same for a catalog of these parameters, in this order, where the launcher of this process
  // has told rank and meeting place in the environment; kInvalidArgument if it has not.
  static Result<std::unique_ptr<ElasticRank>> Join(std::vector<vps::Parameter> parameters,
                                                   elastic::Host* host,
                                                   const ElasticRankOptions& options);
  // Leaves the job. The rank that serves the store first waits for the others to have left.
  ~ElasticRank();
  ElasticRank(const ElasticRank&) = delete;
  ElasticRank& operator=(const ElasticRank&) = delete;

  // The layout this rank is in; stable between boundaries. current().host is what Prepare returned.
  elastic::LayoutInstance& current() { return agent_->current(); }
  bool active() { return current().active(); }
  // The lowest active rank: one for what is to be said once.
  bool speaks();

  // An active rank: after each `step` (counted from 1) has ended; agrees by a sum of one integer
  // over all active ranks whether a prepared switch is made now, and makes it. An idle rank: waits,
  // without deadline, for a layout that needs it or the end of the job. An error ends the job.
  Result<elastic::BoundaryResult> AtStepBoundary(int64_t step);
  // As above for a loop that sums agent().ready() in a reduction of its own.
  Result<elastic::BoundaryResult> AtStepBoundary(int64_t step, bool all_ready);

  // Asks for a layout; any rank, usually the one that speaks. Every call is a request of its own.
  // Refuses what cannot be a layout here; the id counts from 1.
  Result<int64_t> RequestSwitch(const std::string& spec, int64_t step);
  // Tells all ranks that the job is over. Call it on the rank that speaks after the last step.
  Status End(const std::string& reason);

  elastic::SwitchAgent& agent() { return *agent_; }
  elastic::Store& store() { return *store_; }

 private:
  ElasticRank(RankEnvironment environment, std::shared_ptr<const vps::StateCatalog> catalog,
              elastic::Host* host, const ElasticRankOptions& options);
  Status Connect();
  Result<std::shared_ptr<elastic::LayoutInstance>> FirstInstance();
  Result<std::shared_ptr<const vps::LayoutShardMap>> MapOf(const std::string& spec) const;
  Result<bool> AllReady();
  void AwaitOthers();

  RankEnvironment environment_;
  const std::shared_ptr<const vps::StateCatalog> catalog_;
  elastic::Host* const host_;
  const ElasticRankOptions options_;
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<elastic::Store> store_;
  std::unique_ptr<GlooGroupFactory> groups_;
  std::unique_ptr<elastic::SwitchAgent> agent_;
  TimePoint boundary_left_{};  // when the loop was last let go to train
};

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_ELASTIC_RANK_H_
