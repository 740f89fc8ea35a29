#include "dynatrain/bridge/process_harness.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "dynatrain/base/check.h"

namespace dynatrain::bridge {
namespace {

constexpr std::string_view kChildFlag = "--dynatrain-child";

struct Child {
  pid_t pid = -1;
  int pidfd = -1;
  std::filesystem::path log;
  int status = 0;
};

// Between fork and exec only async-signal-safe calls are allowed.
[[noreturn]] void ExecChild(int log_fd, pid_t parent, char* const* argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(125);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execv("/proc/self/exe", argv);
  _exit(126);
}

Child StartChild(const ProcessSpec& spec, int rank, const std::filesystem::path& folder) {
  std::vector<std::string> words = {"child", std::string(kChildFlag), spec.body,
                                    std::to_string(rank), std::to_string(spec.ranks)};
  words.insert(words.end(), spec.values.begin(), spec.values.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  Child child;
  child.log = folder / ("rank-" + std::to_string(rank) + ".log");
  const int log_fd = open(child.log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  DT_CHECK(log_fd >= 0);
  const pid_t parent = getpid();
  child.pid = fork();
  DT_CHECK(child.pid >= 0);
  if (child.pid == 0) ExecChild(log_fd, parent, argv.data());
  close(log_fd);
  child.pidfd = static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0));
  DT_CHECK(child.pidfd >= 0);
  return child;
}

// Waits for `child` until `end`, kills it then. False if it had to be killed.
bool Reap(Child& child, std::chrono::steady_clock::time_point end) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  pollfd event = {child.pidfd, POLLIN, 0};
  const bool in_time = poll(&event, 1, left.count() > 0 ? static_cast<int>(left.count()) : 0) == 1;
  if (!in_time) kill(child.pid, SIGKILL);
  DT_CHECK(waitpid(child.pid, &child.status, 0) == child.pid);
  close(child.pidfd);
  return in_time;
}

std::string ReadAll(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string Describe(int status, bool in_time) {
  if (!in_time) return "killed at the deadline";
  if (WIFSIGNALED(status)) return std::string("died of ") + strsignal(WTERMSIG(status));
  return "returned " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

testing::AssertionResult RunProcesses(const ProcessSpec& spec) {
  std::string pattern = (std::filesystem::temp_directory_path() / "dynatrain-test-XXXXXX").string();
  DT_CHECK(mkdtemp(pattern.data()) != nullptr);
  const std::filesystem::path folder = pattern;
  const auto end = std::chrono::steady_clock::now() + spec.deadline;
  std::vector<Child> children;
  for (int rank = 0; rank < spec.ranks; ++rank) children.push_back(StartChild(spec, rank, folder));

  std::ostringstream report;
  bool good = true;
  for (int rank = 0; rank < spec.ranks; ++rank) {
    Child& child = children[static_cast<size_t>(rank)];
    const bool in_time = Reap(child, end);
    const bool may_die =
        std::find(spec.may_die.begin(), spec.may_die.end(), rank) != spec.may_die.end();
    if (!in_time || (child.status != 0 && !may_die)) good = false;
    report << "--- rank " << rank << " " << Describe(child.status, in_time) << "\n"
           << ReadAll(child.log);
  }
  std::filesystem::remove_all(folder);
  if (good) return testing::AssertionSuccess();
  return testing::AssertionFailure() << spec.body << "\n" << report.str();
}

int HarnessMain(int argc, char** argv, const std::map<std::string, ChildBody>& bodies) {
  if (argc >= 5 && argv[1] == kChildFlag) {
    const auto body = bodies.find(argv[2]);
    DT_CHECK_MSG(body != bodies.end(), argv[2]);
    ChildArgs child = {.rank = std::atoi(argv[3]), .ranks = std::atoi(argv[4]), .values = {}};
    child.values.assign(argv + 5, argv + argc);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    try {
      return body->second(child);
    } catch (const std::exception& e) {
      std::printf("exception: %s\n", e.what());
      return 1;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace dynatrain::bridge
