#include "dynatrain/apps/children.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "dynatrain/base/descriptor.h"

extern char** environ;

namespace dynatrain::apps {
namespace {

constexpr Duration kReapInterval = std::chrono::milliseconds(50);
// Parent's copies live above the numbers that the child's file actions write to.
constexpr int kLowestParentFd = 16;

// The same file at or above kLowestParentFd, closed on exec; `fd` is closed. Below 0, with errno,
// if there is none.
int MoveUp(int fd) {
  const Descriptor old(fd);
  return fd < 0 ? fd : ::fcntl(fd, F_DUPFD_CLOEXEC, kLowestParentFd);
}

// An anonymous file that holds `text`, at its start.
int TextFd(const std::string& text) {
  Descriptor file(MoveUp(::memfd_create("dynatrain-config", MFD_CLOEXEC)));
  if (file.get() < 0) return -1;
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file.get(), text.data() + done, text.size() - done);
    if (count <= 0) return -1;
    done += static_cast<size_t>(count);
  }
  return ::lseek(file.get(), 0, SEEK_SET) == 0 ? file.release() : -1;
}

Status NoDescriptor(RankId rank) {
  const int error = errno;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return ResourceExhausted(
      "cannot start rank {}: no pipe or memory file for it: {}; this process may have {} files "
      "open (ulimit -n), and needs one for each rank beside some twenty",
      rank, std::strerror(error), limit.rlim_cur);
}

}  // namespace

std::string SignalName(int number) {
  return fmt::format("signal {} ({})", number, ::strsignal(number));
}

bool Children::Exit::by_signal() const { return WIFSIGNALED(wait_status); }

std::string Children::Exit::Describe() const {
  if (WIFSIGNALED(wait_status)) {
    return fmt::format("rank {} (pid {}) was killed by {}", rank, pid,
                       SignalName(WTERMSIG(wait_status)));
  }
  return fmt::format("rank {} (pid {}) ended with exit code {}", rank, pid,
                     WEXITSTATUS(wait_status));
}

Result<std::unique_ptr<Children>> Children::Spawn(
    RankId first, int32_t count, const std::function<std::vector<std::string>(RankId)>& arguments,
    const std::string& config, const std::string& log_directory) {
  std::unique_ptr<Children> children(new Children);
  children->children_.resize(static_cast<size_t>(count));
  children->first_ = first;
  for (RankId rank = first; rank < first + count; ++rank) {
    DT_RETURN_IF_ERROR(children->SpawnOne(rank, arguments(rank), config,
                                          fmt::format("{}/rank-{}.log", log_directory, rank)));
  }
  return children;
}

Status Children::SpawnOne(RankId rank, const std::vector<std::string>& arguments,
                          const std::string& config, const std::string& log_path) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return NoDescriptor(rank);
  Descriptor read_end(MoveUp(ends[0]));
  const Descriptor write_end(MoveUp(ends[1]));
  const Descriptor config_file(TextFd(config));
  if (read_end.get() < 0 || write_end.get() < 0 || config_file.get() < 0 ||
      ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK) != 0) {
    return NoDescriptor(rank);
  }

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0644);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  ::posix_spawn_file_actions_adddup2(&actions, config_file.get(), kConfigFd);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), kEventsFd);

  std::vector<std::string> owned = arguments;
  owned.insert(owned.begin(), "dynatrain");
  std::vector<char*> argv;
  for (std::string& argument : owned) argv.push_back(argument.data());
  argv.push_back(nullptr);
  Child& child = ChildOf(rank);
  const int error =
      ::posix_spawn(&child.pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  child.events_fd = read_end.release();
  if (error == 0) return {};
  child.pid = -1;
  return Unavailable("cannot start rank {} (log {}): {}", rank, log_path, std::strerror(error));
}

Children::~Children() {
  Terminate(Duration::zero());
  for (const Child& child : children_) {
    if (child.events_fd >= 0) ::close(child.events_fd);
  }
}

void Children::Poll(Duration timeout,
                    const std::function<void(RankId, const std::string&)>& on_line,
                    const std::function<void(const Exit&)>& on_exit) {
  std::vector<pollfd> fds;
  for (const Child& child : children_) {
    if (child.events_fd >= 0) fds.push_back({child.events_fd, POLLIN, 0});
  }
  // Exits are seen by polling: a process may close its pipe long before it ends.
  const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(
      fds.empty() ? std::min(timeout, kReapInterval) : timeout);
  ::poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
  for (size_t i = 0; i < children_.size(); ++i) Drain(first_ + static_cast<RankId>(i), on_line);
  ReapAll(on_line, on_exit);
}

void Children::Drain(RankId rank, const std::function<void(RankId, const std::string&)>& on_line) {
  Child& child = ChildOf(rank);
  std::array<char, 4096> chunk{};
  while (child.events_fd >= 0) {
    const ssize_t count = ::read(child.events_fd, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0) {
      ::close(child.events_fd);
      child.events_fd = -1;
      break;
    }
    child.pending.append(chunk.data(), static_cast<size_t>(count));
  }
  size_t begin = 0;
  for (size_t end; (end = child.pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
    on_line(rank, child.pending.substr(begin, end - begin));
  }
  child.pending.erase(0, begin);
}

void Children::ReapAll(const std::function<void(RankId, const std::string&)>& on_line,
                       const std::function<void(const Exit&)>& on_exit) {
  for (size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    int status = 0;
    if (child.pid < 0 ||
        ::waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != child.pid) {
      continue;
    }
    child.stopped_by = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
    const Exit exit{first_ + static_cast<RankId>(i), child.pid, status};
    child.pid = -1;
    Drain(exit.rank, on_line);
    on_exit(exit);
  }
}

std::vector<RankId> Children::running() const {
  std::vector<RankId> ranks;
  for (size_t i = 0; i < children_.size(); ++i) {
    if (children_[i].pid >= 0) ranks.push_back(first_ + static_cast<RankId>(i));
  }
  return ranks;
}

std::map<RankId, int> Children::stopped() const {
  std::map<RankId, int> signals;
  for (const RankId rank : running()) {
    const int number = children_[static_cast<size_t>(rank - first_)].stopped_by;
    if (number != 0) signals[rank] = number;
  }
  return signals;
}

void Children::Signal(int number) const {
  for (const Child& child : children_) {
    if (child.pid >= 0) ::kill(child.pid, number);
  }
}

void Children::Kill(RankId rank) const {
  const pid_t pid = children_[static_cast<size_t>(rank - first_)].pid;
  if (pid >= 0) ::kill(pid, SIGKILL);
}

void Children::Terminate(Duration grace) {
  const auto ignore_line = [](RankId, const std::string&) {};
  const auto ignore_exit = [](const Exit&) {};
  if (!any_running()) return;
  Signal(SIGTERM);
  const TimePoint end = MonotonicClock().Now() + grace;
  while (any_running() && MonotonicClock().Now() < end) {
    ReapAll(ignore_line, ignore_exit);
    MonotonicClock().SleepUntil(std::min(end, MonotonicClock().Now() + kReapInterval));
  }
  Signal(SIGKILL);
  while (any_running()) {
    ReapAll(ignore_line, ignore_exit);
    if (any_running()) MonotonicClock().SleepUntil(MonotonicClock().Now() + kReapInterval / 10);
  }
}

}  // namespace dynatrain::apps
