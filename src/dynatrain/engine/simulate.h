// Runs the programs of all ranks in virtual time over the links of a topology: the same actions,
// windows and rounds as the executor, with flows instead of bytes.
//
// The model. A rank does one thing at a time: packing, unpacking, copying and checking take bytes /
// rate, posting takes a fixed cost per message. A message flows from the moment both ends have
// posted it (its sender: packed and hashed the first chunk), after a latency; it is unpacked and
// hashed chunk by chunk while it arrives. Flows share links fairly (max-min): each rank has a link out and one in
// (intra_node_bytes_per_s), each node one out and one in (inter_node_bytes_per_s) for what crosses
// nodes. Processor cores that ranks share are not modelled: give rates as measured with all ranks
// at work.
#ifndef DYNATRAIN_ENGINE_SIMULATE_H_
#define DYNATRAIN_ENGINE_SIMULATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/engine/executor.h"
#include "dynatrain/engine/program.h"
#include "dynatrain/planner/topology.h"

namespace dynatrain::engine {

struct SimulationOptions {
  Verify verify = Verify::kMoved;
  double latency_s = 10e-6;         // from the later post to the first byte
  double message_s = 5e-6;          // of a rank's time, for each post
  double copy_bytes_per_s = 8e9;    // pack, unpack and local copies; 0 is free
  double check_bytes_per_s = 16e9;  // hashing on either side; 0 is free
  bool timeline = false;
};

// One thing that a rank did, or one message that travelled to it.
struct TimelineEntry {
  enum class Kind : uint8_t { kPack, kUnpack, kCopy, kCheck, kMessage };
  Kind kind;
  RankId rank;
  RankId peer;  // sender of a message; else the rank itself
  int32_t phase;
  ByteCount bytes;
  double begin_s;
  double end_s;
};

struct LinkUse {
  std::string name;  // "rank 3 in", "node 0 out"
  ByteCount bytes = 0;
  double busy_s = 0;  // bytes / rate
};

struct SimulationReport {
  double seconds = 0;                // until the last rank is done
  std::vector<double> rank_seconds;  // in the order of the programs
  ByteCount wire_bytes = 0;
  ByteCount cross_node_bytes = 0;
  std::vector<LinkUse> links;           // that carried anything, the fullest (largest busy_s) first
  std::vector<TimelineEntry> timeline;  // if asked for, by begin

  // No order of these messages can be faster than the fullest link.
  double bound_seconds() const { return links.empty() ? 0 : links.front().busy_s; }
};

// kInternal if the programs deadlock, kInvalidArgument if a link has no rate. Any thread; pure.
Result<SimulationReport> Simulate(const std::vector<Program>& programs,
                                  const planner::Topology& topology,
                                  const SimulationOptions& options);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_SIMULATE_H_
