// Several launchers of one job, one on each node: who they are, and what they tell each other
// through the store. The first serves the store (unless torchrun's agent does), takes control
// requests and tells progress; the others start their ranks and pass on what those say.
#ifndef DYNATRAIN_APPS_NODES_H_
#define DYNATRAIN_APPS_NODES_H_

#include <functional>
#include <optional>
#include <string>

#include "dynatrain/apps/children.h"
#include "dynatrain/apps/job_config.h"
#include "dynatrain/bridge/c10d_groups.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/elastic/store.h"

namespace dynatrain::apps {

struct NodeOptions {
  int32_t index = 0;                           // of this launcher
  int32_t count = 1;                           // of all
  bridge::StoreAddress store{"127.0.0.1", 0};  // port 0: a free one, alone only
  bool serves_store = true;
  bridge::StoreAddress listen{"127.0.0.1", 0};  // where the store does, if this launcher serves it
  bridge::GlooOptions gloo{.interface = "lo"};  // where this node's ranks listen
  bool first() const { return index == 0; }
};

// From --interface NAME and --host ADDRESS (either may be empty), and from what torchrun, srun and
// their like say in the environment (bridge::ReadRankEnvironment), where each of their processes
// is one launcher. Without any of it: alone, on loopback. kInvalidArgument names what is wrong.
Result<NodeOptions> FindNode(const std::string& interface, const std::string& host);

// Starts this node's ranks of the job: config.num_ranks over all launchers, those of each launcher in
// a row.
Result<std::unique_ptr<Children>> SpawnRanks(const NodeOptions& node, const JobConfig& config,
                                             const std::string& log_directory);

// One thread at a time. An error is the store's, and ends the job here.
class NodeLink {
 public:
  NodeLink(elastic::Store* store, const NodeOptions& node) : store_(store), node_(node) {}

  // First launcher: what all ranks are started with; others wait for it up to `timeout`.
  Status ShareConfig(const JobConfig& config);
  Result<JobConfig> AwaitConfig(Duration timeout);

  // Others: passes on a line about a rank of theirs. After the last, Leave.
  Status Push(RankId rank, const std::string& line);
  Status Leave();
  // First launcher: hands over every line that has come since.
  Status Pull(const std::function<void(RankId, const std::string&)>& on_line);
  // First launcher: whether all others have left.
  bool all_left() const { return left_ == node_.count - 1; }

  // First launcher: tells the others to end their ranks, and why; waits until they have left, up to
  // `timeout`.
  void EndOthers(const Status& why, Duration timeout);
  // Others: the reason, once told.
  Result<std::optional<std::string>> Ended();

 private:
  std::string Key(int32_t launcher, int64_t number) const;

  elastic::Store* const store_;
  const NodeOptions node_;
  int64_t pushed_ = 0;
  std::vector<int64_t> pulled_;  // by launcher
  int32_t left_ = 0;
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_NODES_H_
