// Tests with real processes: the test binary starts copies of itself, one per rank, each running a
// named body. For tests only.
//
//   int Echo(const ChildArgs& child) { return child.rank == 0 ? 0 : 1; }
//   TEST(X, Y) { EXPECT_TRUE(RunProcesses({.body = "Echo", .ranks = 2})); }
//   int main(int argc, char** argv) { return HarnessMain(argc, argv, {{"Echo", Echo}}); }
#ifndef DYNATRAIN_BRIDGE_PROCESS_HARNESS_H_
#define DYNATRAIN_BRIDGE_PROCESS_HARNESS_H_

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace dynatrain::bridge {

struct ChildArgs {
  int rank = 0;
  int ranks = 0;
  std::vector<std::string> values;  // the test's own arguments, the same for all ranks
};

using ChildBody = std::function<int(const ChildArgs&)>;

struct ProcessSpec {
  std::string body;
  int ranks = 0;
  std::vector<std::string> values = {};
  std::chrono::seconds deadline{60};
  std::vector<int> may_die = {};  // ranks whose exit status does not matter
};

// Starts the processes, waits for all, and succeeds if all returned 0 in time. Otherwise the
// failure holds every rank's output. No process outlives the call, nor a parent that is killed.
// Output is kept in a temporary folder that is removed.
testing::AssertionResult RunProcesses(const ProcessSpec& spec);

// The main function of such a test: runs one child's body, or the tests.
int HarnessMain(int argc, char** argv, const std::map<std::string, ChildBody>& bodies);

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_PROCESS_HARNESS_H_
