// Several launchers of one job, one on each node: who they are, and what they tell each other
// through the store. The first serves the store (unless torchrun's agent does), takes control
// requests and tells progress; the others start their ranks and pass on what those say.
#ifndef DYNATRAIN_APPS_NODES_H_
#define DYNATRAIN_APPS_NODES_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dynatrain/apps/children.h"
#include "dynatrain/apps/job_config.h"
#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
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
  Duration join_timeout = std::chrono::seconds(120);  // how long launchers wait for each other

  bool first() const { return index == 0; }
};

// From --interface NAME and --host ADDRESS (either may be empty), and from what torchrun, srun and
// their like say in the environment (bridge::ReadRankEnvironment), where each of their processes
// is one launcher. Without any of it: alone, on loopback. Waits up to `join_timeout` for the name of
// the store's host to be known. kInvalidArgument names what is wrong.
Result<NodeOptions> FindNode(const std::string& interface, const std::string& host,
                             Duration join_timeout);

// The ranks that a launcher starts: those of all launchers are equally many and in a row.
struct NodeRanks {
  RankId first = 0;
  int32_t count = 0;
};
NodeRanks RanksOf(const NodeOptions& node, const JobConfig& config);

Result<std::unique_ptr<Children>> SpawnRanks(const NodeOptions& node, const JobConfig& config,
                                             const std::string& log_directory);

// What launchers tell each other. One thread at a time; `store` outlives it. An error is the
// store's, and ends the job here.
class NodeLink {
 public:
  NodeLink(elastic::Store* store, const NodeOptions& node);

  // First launcher: what all ranks are started with; the others wait for it. None if the first one
  // has ended the job instead, and told why (Ended).
  Status ShareConfig(const JobConfig& config);
  Result<std::optional<JobConfig>> AwaitConfig();
  // First launcher: returns once all others have given word. kDeadlineExceeded names those that
  // have not within the join timeout; kAborted if `give_up` says so before.
  Status AwaitOthers(const std::function<bool()>& give_up);

  // Others: passes on a line about a rank of theirs.
  Status Push(RankId rank, const std::string& line);
  // Others: a sign of life, if nothing else was said for a second; the first one says the host's
  // name. To be called often.
  Status StayAlive();
  // Others: why this launcher is about to end its ranks, for a reason of its own.
  Status TellEnding(const Status& why);
  // Others: a signal was passed on to its ranks, which end after their step.
  Status TellStopped(int signal);
  // Others: the last word, when its ranks have ended.
  Status Leave();

  // First launcher: hands over every line that has come since.
  Status Pull(const std::function<void(RankId, const std::string&)>& on_line);
  // First launcher, as of the last Pull: an error once another launcher ended its ranks by itself,
  // or was silent for longer than `silence` without having left. Who was is not waited for any more.
  Status Missing(Duration silence);
  // First launcher, as of the last Pull: whether all others that have not left or ended their ranks
  // have said something since `failure`; and an error that names one that has not, and its ranks.
  bool HeardSince(TimePoint failure) const;
  Status LostSince(TimePoint failure);
  // First launcher, as of the last Pull: another one that has been silent for longer than `silence`,
  // each once until it is heard again.
  struct Silent {
    int32_t launcher = 0;
    std::string host;  // of that name; empty: not known
    NodeRanks ranks;
    double seconds = 0;
    std::string ToText() const;  // "launcher 1 on node7 (ranks 8-15) gave no sign of life for 5 s"
    nlohmann::json ToJson() const;  // launcher, host, ranks, seconds
  };
  std::optional<Silent> NextSilent(Duration silence);
  // First launcher, as of the last Pull: "signal 15 to launcher 1", if that is what ended the job;
  // else empty.
  std::string StoppedBy() const;
  // First launcher: whether all others have left, or are lost.
  bool all_left() const;

  // First launcher: tells the others to end their ranks, and why; waits until they have left, up to
  // `timeout`.
  void EndOthers(const Status& why, Duration timeout);
  // Others: the reason, once told. AwaitEnd waits for it, up to `timeout`, and stays alive.
  Result<std::optional<std::string>> Ended();
  Result<std::string> AwaitEnd(Duration timeout);

 private:
  // What the first launcher knows of another one.
  struct Other {
    int64_t pulled = 0;  // words so far
    TimePoint last_word = {};
    std::string host = {};
    bool left = false;
    bool lost = false;
    bool told_silent = false;
    std::string ending;  // why it ended its ranks, empty: it did not
    int stopped = 0;     // the signal that it passed on to its ranks
  };

  Other& OtherOf(int32_t launcher) { return others_[static_cast<size_t>(launcher)]; }
  const Other& OtherOf(int32_t launcher) const { return others_[static_cast<size_t>(launcher)]; }
  bool Unheard(int32_t launcher, TimePoint since) const;
  Silent SilenceOf(int32_t launcher) const;
  std::string Key(int32_t launcher, int64_t number) const;
  Status Say(const std::string& word);
  Status Hear(int32_t launcher, const std::string& word,
              const std::function<void(RankId, const std::string&)>& on_line);

  elastic::Store* const store_;
  const NodeOptions node_;
  int32_t ranks_each_ = 0;  // first launcher: of each one, once the configuration is shared
  int64_t pushed_ = 0;
  TimePoint last_pushed_ = {};
  std::vector<Other> others_;  // by launcher, the first one's unused
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_NODES_H_
