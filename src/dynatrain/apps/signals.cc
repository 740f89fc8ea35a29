#include "dynatrain/apps/signals.h"

#include <signal.h>

#include <atomic>

#include "dynatrain/apps/children.h"

namespace dynatrain::apps {
namespace {

std::atomic<int> last{0};
std::atomic<int> count{0};

void OnSignal(int number) {
  last = number;
  ++count;
}

}  // namespace

void NoticeSignals() {
  struct sigaction action{};
  action.sa_handler = OnSignal;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(kStopSignal, SIG_IGN);
}

int StopSignal() { return last; }
int StopSignals() { return count; }

}  // namespace dynatrain::apps
