#include "dynatrain/apps/rank_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "dynatrain/apps/children.h"
#include "dynatrain/base/log.h"
#include "dynatrain/bridge/fence.h"

namespace dynatrain::apps {
namespace {

std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> chunk{};
  for (ssize_t count; (count = ::read(fd, chunk.data(), chunk.size())) > 0;) {
    text.append(chunk.data(), static_cast<size_t>(count));
  }
  ::close(fd);
  return text;
}

}  // namespace

int RunRankProcess(
    RankId rank, pid_t launcher,
    const std::function<Status(const std::string& config, EventWriter* events)>& body) {
  // No rank outlives its launcher; and a terminal's Ctrl-C is the launcher's to handle.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) return 1;  // it ended before it could take this process along
  ::signal(SIGINT, SIG_IGN);
  InitLog(fmt::format("rank {}", rank), LogLevel::kInfo);
  bridge::SilenceTorchLog();
  EventWriter events(kEventsFd);
  events.Write("up", {{"rank", rank}});
  const Status status = body(ReadAll(kConfigFd), &events);
  if (status.ok()) return 0;
  LogError("{}", status.ToString());
  events.Write("error", {{"message", status.ToString()}});
  // Broken groups may take their time to end: nothing more is owed.
  std::quick_exit(1);
}

}  // namespace dynatrain::apps
