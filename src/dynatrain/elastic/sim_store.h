// SimStore: the store of a simulated job. Every operation is a place where other ranks may run
// before and after.
#ifndef DYNATRAIN_ELASTIC_SIM_STORE_H_
#define DYNATRAIN_ELASTIC_SIM_STORE_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "dynatrain/elastic/sim_scheduler.h"
#include "dynatrain/elastic/store.h"

namespace dynatrain::elastic {

// The data, and the faults of the connections to it. Outlives its connections.
class SimStoreServer {
 public:
  explicit SimStoreServer(SimScheduler* scheduler) : scheduler_(scheduler) {}

  // A connection of `owner`.
  std::unique_ptr<Store> Connect(RankId owner);

  const std::map<std::string, std::string>& values() const { return values_; }
  // The value or an empty string.
  std::string Peek(const std::string& key) const;

  // The next operation of `owner` fails and with it all its connections; by chance it took effect
  // or not.
  void FailNext(RankId owner) { fail_next_.insert(owner); }
  // No operation of `owner` comes through before `until`.
  void Cut(RankId owner, TimePoint until) { cut_until_[owner] = until; }
  // Each operation takes up to this long on its way there, and again on its way back.
  void SetLatency(Duration most) { latency_ = most; }
  // Takes back what has not failed yet; operations are quick again.
  void Disarm() {
    fail_next_.clear();
    latency_ = {};
  }
  // Whether `owner` has lost the store for good.
  bool Lost(RankId owner) const { return lost_.contains(owner); }

  // Called for each write, after it took effect.
  void OnWrite(
      std::function<void(RankId owner, const std::string& key, const std::string& value)> hook) {
    on_write_ = std::move(hook);
  }

 private:
  class Connection;

  SimScheduler* const scheduler_;
  std::map<std::string, std::string> values_;
  Duration latency_{};
  std::set<RankId> fail_next_;
  std::set<RankId> lost_;
  std::map<RankId, TimePoint> cut_until_;
  std::function<void(RankId, const std::string&, const std::string&)> on_write_;
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SIM_STORE_H_
