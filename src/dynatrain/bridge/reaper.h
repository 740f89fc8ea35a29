// A thread on which slow destructors run.
#ifndef DYNATRAIN_BRIDGE_REAPER_H_
#define DYNATRAIN_BRIDGE_REAPER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace dynatrain::bridge {

// Runs what it is given, in order, on its own thread: the destruction of groups, which joins threads and
// waits for I/O ticks. All methods but the destructor from any thread.
class Reaper {
 public:
  Reaper();
  ~Reaper();  // runs what is left
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  void Post(std::function<void()> work);
  // Returns when everything posted before has run.
  void Drain();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;  // last: starts when the rest stands
};

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_REAPER_H_
