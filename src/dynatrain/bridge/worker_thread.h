// One thread with a queue.
#ifndef DYNATRAIN_BRIDGE_WORKER_THREAD_H_
#define DYNATRAIN_BRIDGE_WORKER_THREAD_H_

#include <functional>
#include <memory>
#include <thread>

namespace dynatrain::bridge {

// Runs what it is given, in order, on its own thread: calls that may take longer than their caller
// may wait, such as the destruction of groups. Any thread may call; work may not throw.
class WorkerThread {
 public:
  WorkerThread();
  ~WorkerThread();  // runs what is left and joins, unless abandoned
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  void Post(std::function<void()> work);
  // Returns when everything posted before has run.
  void Drain();
  // For work that does not come back: nothing waits for the thread any more, and it ends should the
  // work ever do. What the work uses must be its own.
  void Abandon();

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_WORKER_THREAD_H_
