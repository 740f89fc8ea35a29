// ReportDesk: what a rank owes of reports about finished switches, and, on one rank, what it waits
// for from the others.
#ifndef DYNATRAIN_ELASTIC_REPORT_DESK_H_
#define DYNATRAIN_ELASTIC_REPORT_DESK_H_

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "dynatrain/elastic/switch.h"

namespace dynatrain::elastic {

// Thread-safe: the training thread adds costs, the background thread calls Pump.
class ReportDesk {
 public:
  ReportDesk(RankId rank, SwitchOptions options, Clock* clock,
             std::function<void(const SwitchReport&)> on_report);

  // A switch is decided. `keeps_training`: this rank is active afterwards and the switch was
  // committed, so its costs are complete only after some steps.
  void Add(const SwitchParticipant& participant, bool keeps_training);

  void FirstStepStarts();
  void StepTook(double seconds);

  // Writes what is complete, gathers what others wrote, hands out merged reports and deletes the
  // keys of switches that all have reported. `last`: everything of this rank counts as complete.
  // Errors are the store's.
  Status Pump(Store& store, bool last);

  // Whether nothing is owed or waited for.
  bool empty() const;

 private:
  struct Own {
    SwitchReport report;
    std::vector<RankId> participants;
    RankId reporter;
    TimePoint pause_began, decided_at;
    bool open = false;          // waits for steps
    bool started = false;       // FirstStepStarts came
    std::vector<double> steps;  // seconds
  };
  struct Gathering {
    int64_t id;
    std::vector<RankId> participants;
    std::map<RankId, SwitchReport> reports;
    TimePoint deadline;
  };

  std::optional<Own> TakeComplete(bool last);
  Status Gather(Store& store, Gathering* gathering);

  const RankId rank_;
  const SwitchOptions options_;
  Clock* const clock_;
  const std::function<void(const SwitchReport&)> on_report_;
  mutable std::mutex mutex_;
  std::deque<Own> own_;  // by id; only the last may be open
  std::vector<Gathering> gatherings_;
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_REPORT_DESK_H_
