// SimNet: groups and transports of a simulated job, with the faults of its network.
#ifndef DYNATRAIN_ELASTIC_SIM_NET_H_
#define DYNATRAIN_ELASTIC_SIM_NET_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dynatrain/elastic/groups.h"
#include "dynatrain/elastic/sim_scheduler.h"

namespace dynatrain::elastic {

// Outlives what it makes.
class SimNet {
 public:
  struct Options {
    bool rendezvous =
        true;  // a send completes only with its receive; else its data are copied at once
    bool silent_deaths = false;  // peers of a dead rank notice only by their deadlines
  };
  SimNet(SimScheduler* scheduler, Options options) : scheduler_(scheduler), options_(options) {}
  ~SimNet();

  std::unique_ptr<GroupFactory> FactoryOf(RankId rank);

  void FailNextSetup(RankId rank) { fail_setup_.insert(rank); }
  void FailNextTransfer(RankId rank) { fail_transfer_.insert(rank); }
  // One bit of the next message that `rank` receives is flipped.
  void CorruptNextTransfer(RankId rank) { corrupt_.insert(rank); }
  // Messages between the two do not arrive before `until`.
  void Cut(RankId a, RankId b, TimePoint until) { cut_until_[std::minmax(a, b)] = until; }
  // The process of `rank` is gone: connections to it break.
  void Gone(RankId rank) { gone_.insert(rank); }

  // Takes back what has not failed yet.
  void Disarm() {
    fail_setup_.clear();
    fail_transfer_.clear();
    corrupt_.clear();
  }

  // The last epoch that `rank` made a transport of.
  std::string last_epoch(RankId rank) const;

 private:
  class Factory;
  class Endpoint;
  struct Operation;

  bool Reachable(RankId a, RankId b) const;
  bool Broken(RankId peer) const { return !options_.silent_deaths && gone_.contains(peer); }
  Status Meet(const std::string& name, const std::vector<RankId>& ranks, RankId rank,
              Duration timeout);

  SimScheduler* const scheduler_;
  const Options options_;
  std::map<std::string, std::set<RankId>> meetings_;
  std::map<std::string, std::map<RankId, Endpoint*>> endpoints_;  // by epoch
  std::map<RankId, std::string> last_epoch_;
  std::set<RankId> fail_setup_, fail_transfer_, corrupt_, gone_, left_;
  std::map<std::pair<RankId, RankId>, TimePoint> cut_until_;
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SIM_NET_H_
