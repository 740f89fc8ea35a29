// The rank processes of one launcher: started, listened to, and never left behind.
#ifndef DYNATRAIN_APPS_CHILDREN_H_
#define DYNATRAIN_APPS_CHILDREN_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::apps {

// File descriptors that a rank process is born with, beside standard ones.
inline constexpr int kConfigFd = 3;  // read end: the JobConfig as JSON until end of file
inline constexpr int kEventsFd = 4;  // write end of a pipe: one JSON object per line

// Asks a rank to end after the current step, saving if the job has a directory for checkpoints.
inline constexpr int kStopSignal = SIGUSR1;

// "signal 9 (Killed)"
std::string SignalName(int number);

// Not thread-safe. The destructor kills and reaps whatever still runs.
class Children {
 public:
  struct Exit {
    RankId rank = 0;
    pid_t pid = 0;
    int wait_status = 0;
    bool failed() const { return wait_status != 0; }
    bool by_signal() const;
    std::string Describe() const;  // "rank 3 (pid 4242) was killed by signal 9 (Killed)"
  };

  // Starts ranks first, first + 1, ... as `count` copies of this program, arguments from `arguments(rank)`, `config` on kConfigFd;
  // standard output and error go to log_directory/rank-<n>.log.
  static Result<std::unique_ptr<Children>> Spawn(
      RankId first, int32_t count, const std::function<std::vector<std::string>(RankId)>& arguments,
      const std::string& config, const std::string& log_directory);
  ~Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  // Waits at most `timeout` for something to happen, then hands over all whole lines and all exits
  // there are. A rank's lines come before its exit.
  void Poll(Duration timeout, const std::function<void(RankId, const std::string&)>& on_line,
            const std::function<void(const Exit&)>& on_exit);

  bool any_running() const { return !running().empty(); }
  std::vector<RankId> running() const;  // ascending
  // Those of them that a signal has stopped, as of the last Poll, and which.
  std::map<RankId, int> stopped() const;
  // Sends a signal to all that still run. A rank ignores kStopSignal until it is ready for it.
  void Signal(int number) const;
  // SIGKILL to one rank; Poll tells when it has ended.
  void Kill(RankId rank) const;
  // SIGTERM, then after `grace` SIGKILL to whoever still runs; reaps all.
  void Terminate(Duration grace);

 private:
  struct Child {
    pid_t pid = -1;       // -1 once reaped
    int stopped_by = 0;   // the signal that has stopped it; 0: it runs
    int events_fd = -1;   // -1 once at end of file
    std::string pending;  // an unfinished line
  };

  Children() = default;
  Status SpawnOne(RankId rank, const std::vector<std::string>& arguments, const std::string& config,
                  const std::string& log_path);
  void Drain(RankId rank, const std::function<void(RankId, const std::string&)>& on_line);
  void ReapAll(const std::function<void(RankId, const std::string&)>& on_line,
               const std::function<void(const Exit&)>& on_exit);

  Child& ChildOf(RankId rank) { return children_[static_cast<size_t>(rank - first_)]; }

  RankId first_ = 0;
  std::vector<Child> children_;
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_CHILDREN_H_
