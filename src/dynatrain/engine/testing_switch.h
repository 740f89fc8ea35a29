// For tests: a whole switch of state, ranks as threads over the in-process transport.
#ifndef DYNATRAIN_ENGINE_TESTING_SWITCH_H_
#define DYNATRAIN_ENGINE_TESTING_SWITCH_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dynatrain/base/random.h"
#include "dynatrain/engine/executor.h"
#include "dynatrain/engine/program.h"
#include "dynatrain/transport/faulty.h"
#include "dynatrain/transport/local.h"
#include "dynatrain/vps/element_state.h"
#include "dynatrain/vps/testing_maps.h"

namespace dynatrain::engine::testing {

using vps::testing::UnionOfRanks;

// The program of every rank, each compiled alone. Fails the test on an error.
std::vector<Program> CompileAll(const vps::ShardMap& from, const vps::ShardMap& to,
                                const planner::Topology& topology, const std::vector<RankId>& ranks,
                                const CompileOptions& options = {},
                                const planner::PlanOptions& plan = {});

struct SwitchOptions {
  planner::Topology topology;
  std::vector<RankId> ranks;  // empty: UnionOfRanks
  transport::LocalOptions transport;
  Verify verify = Verify::kMoved;
  CompileOptions compile;
  planner::PlanOptions plan;
  Duration timeout = std::chrono::seconds(20);
  std::map<RankId, std::vector<transport::Fault>> faults;
  std::function<void(Program*)> change;  // applied to each compiled program
};

struct SwitchResult {
  std::map<RankId, Status> status;
  Status ties;                    // of all ranks' sums, if all ranks are Ok
  vps::testing::State old_state;  // after the switch
  vps::testing::State new_state;
  std::map<RankId, ProgramStats> stats;
  std::map<RankId, ExecutionProgress> progress;
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

// A random catalog, two layouts of it on at most 17 ranks, a topology and an unkind transport. What
// is drawn next is the caller's.
struct RandomSwitch {
  std::shared_ptr<const vps::StateCatalog> catalog;
  std::shared_ptr<const vps::LayoutShardMap> from, to;
  SwitchOptions options;
};
RandomSwitch DrawSwitch(uint64_t seed, Random* random);

// State with a value for every element, fp32 only; without std::map and std::function, for
// megabytes.
vps::testing::State Numbered(const vps::ShardMap& map);

// Moves state from layout to layout by real programs over the in-process transport. After each hop
// every element is where the element oracle puts it, padding is zero, replicas agree, and no more
// bytes have moved than have to. The last state.
vps::testing::State ExpectSurvives(
    const std::shared_ptr<const vps::StateCatalog>& catalog, const std::vector<std::string>& specs,
    const vps::testing::ValueFunction& value = vps::testing::DistinctValue,
    const SwitchOptions& options = {});

}  // namespace dynatrain::engine::testing

#endif  // DYNATRAIN_ENGINE_TESTING_SWITCH_H_
