#include "dynatrain/bridge/worker_thread.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace dynatrain::bridge {

struct WorkerThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false;
  bool stop = false;

  void Run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stop || !queue.empty(); });
      if (queue.empty()) return;
      std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
  }
};

WorkerThread::WorkerThread()
    : state_(std::make_shared<State>()), thread_([state = state_] { state->Run(); }) {}

WorkerThread::~WorkerThread() {
  if (!thread_.joinable()) return;
  state_->Stop();
  thread_.join();
}

void WorkerThread::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(work));
  }
  state_->changed.notify_all();
}

void WorkerThread::Drain() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->queue.empty() && !state_->busy; });
}

void WorkerThread::Abandon() {
  state_->Stop();
  thread_.detach();
}

}  // namespace dynatrain::bridge
