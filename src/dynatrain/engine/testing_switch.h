// For tests: a whole switch of state, ranks as threads over the in-process transport.
#ifndef DYNATRAIN_ENGINE_TESTING_SWITCH_H_
#define DYNATRAIN_ENGINE_TESTING_SWITCH_H_

#include <functional>
#include <map>
#include <vector>

#include "dynatrain/engine/executor.h"
#include "dynatrain/engine/program.h"
#include "dynatrain/transport/faulty.h"
#include "dynatrain/transport/local.h"
#include "dynatrain/vps/element_oracle.h"

namespace dynatrain::engine::testing {

// The ranks of both maps, ascending.
std::vector<RankId> UnionOfRanks(const vps::ShardMap& from, const vps::ShardMap& to);

// The program of every rank, each compiled alone. Fails the test on an error.
std::vector<Program> CompileAll(const vps::ShardMap& from, const vps::ShardMap& to,
                                const planner::Topology& topology, const std::vector<RankId>& ranks,
                                const CompileOptions& options = {});

struct SwitchOptions {
  planner::Topology topology;
  std::vector<RankId> ranks;  // empty: UnionOfRanks
  transport::LocalOptions transport;
  Verify verify = Verify::kMoved;
  CompileOptions compile;
  Duration timeout = std::chrono::seconds(20);
  std::map<RankId, std::vector<transport::Fault>> faults;
  std::function<void(Program*)> change;  // applied to each compiled program
};

struct SwitchResult {
  std::map<RankId, Status> status;
  vps::testing::State old_state;  // after the switch
  vps::testing::State new_state;
  std::map<RankId, ProgramStats> stats;
  // Most bytes that a rank's old state, new state and staging took, looked up at each call of its
  // transport.
  std::map<RankId, ByteCount> peak_bytes;
  std::map<RankId, std::vector<ByteCount>> resident_old_bytes;  // of each old buffer, afterwards

  bool ok() const;
  std::string ToString() const;  // the errors
};

// Moves `state` of map `from` to map `to`. New memory is filled with the NaN pattern first.
// `old_state` of a streaming switch is what it has left.
SwitchResult RunSwitch(const vps::ShardMap& from, const vps::testing::State& state,
                       const vps::ShardMap& to, const SwitchOptions& options);

}  // namespace dynatrain::engine::testing

#endif  // DYNATRAIN_ENGINE_TESTING_SWITCH_H_
