// SimJob: what the ranks of a simulated job share — scheduler, store, network, reductions — with the
// launcher, the faults and the rules. The inside of sim_world.h.
#ifndef DYNATRAIN_ELASTIC_SIM_JOB_H_
#define DYNATRAIN_ELASTIC_SIM_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dynatrain/elastic/sim_net.h"
#include "dynatrain/elastic/sim_scheduler.h"
#include "dynatrain/elastic/sim_store.h"
#include "dynatrain/elastic/sim_world.h"

namespace dynatrain::elastic {

class SimRank;

class SimJob {
 public:
  explicit SimJob(const SimScript& to_run);
  ~SimJob();

  SimResult Run();

  template <class... Args>
  void Violation(fmt::format_string<Args...> format, Args&&... args) {
    if (result.violations.size() < 10) {
      result.violations.push_back(
          fmt::format("[{:.3f} s, step {}] ", ToSeconds(scheduler.now()), scheduler.steps()) +
          fmt::format(format, std::forward<Args>(args)...));
    }
  }

  // Ended against its will: what is left of the job cannot be expected to switch.
  bool Dead(RankId rank) const;
  int64_t last_committed() const { return last_committed_; }
  std::string DecisionOf(int64_t id) const { return server.Peek(SwitchKey(id, "decision")); }
  // The switch whose outcome is Lost, of which there can be only one; 0: none.
  int64_t LostSwitch() const;
  // Whether a layout is no more: never came to be, or a later one was committed.
  bool Over(int64_t epoch) const {
    return last_committed_ > epoch || DecisionOf(epoch).starts_with("abort");
  }

  // The step's own reduction over the active ranks. None: a member is gone.
  struct Reduced {
    bool all_ready;
    bool end;
  };
  std::optional<Reduced> Reduce(const LayoutInstance& instance, int64_t step, RankId rank,
                                bool ready);

  const SimScript script;
  SimScheduler scheduler;
  SimClock clock;
  SimStoreServer server;
  SimNet net;
  std::vector<std::unique_ptr<SimRank>> ranks;
  SimResult result;
  bool end_requested = false;
  std::map<int64_t, int> reports;  // by id
  // By epoch: the last step before the layout since which a role has been there without a break.
  std::map<int64_t, std::map<std::string, int64_t>> role_begins;

 private:
  struct Reduction {
    std::set<RankId> present;
    bool all_ready = true;
    bool end = false;
    bool failed = false;
  };

  void Strike(RankId owner);
  void Apply(const SimFault& fault);
  void OnWrite(RankId owner, const std::string& key, const std::string& value);
  void OnDecision(RankId owner, int64_t id, const std::string& value);
  void Launch();
  void Ask(Store& store, const std::string& spec);
  bool AwaitDecision(int64_t id, Duration timeout);
  void TryAgain(Store& store);
  void AwaitReports();
  bool AllLive() const;
  void CheckLoss();
  void CheckEnd();

  std::vector<int64_t> steps_of_rank_ = std::vector<int64_t>(16);
  std::vector<bool> struck_ = std::vector<bool>(16);
  bool faults_on_ = true;
  TimePoint quiet_from_{};                                       // the last cut or stop is over
  std::map<std::pair<int64_t, int64_t>, Reduction> reductions_;  // by epoch, step
  int64_t last_committed_ = 0;
  int64_t last_id_ = 0;
  std::map<int64_t, std::string> specs_;  // by id; 0: the first layout
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SIM_JOB_H_
