// SimWorld: a whole elastic job in one thread, drawn from a seed — ranks with agents and a training
// loop, a launcher that asks for switches, faults that strike at any step — and the rules that must
// hold whatever happens.
#ifndef DYNATRAIN_ELASTIC_SIM_WORLD_H_
#define DYNATRAIN_ELASTIC_SIM_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dynatrain/elastic/agent.h"
#include "dynatrain/elastic/sim_net.h"
#include "dynatrain/elastic/sim_scheduler.h"
#include "dynatrain/elastic/sim_store.h"

namespace dynatrain::elastic {

struct SimFault {
  enum class Kind {
    kKill,
    kFreeze,          // a stopped process that goes on later
    kStoreError,      // the connection is lost for good: the rank stops
    kStoreCut,        // store operations hang for a while
    kNetworkCut,      // messages with one other rank do not arrive for a while
    kTransferError,   // one transport fails
    kCorruption,      // one bit of one message is flipped
    kSetupError,      // one group or transport cannot be made
    kAllocationError  // the host cannot prepare
  };
  Kind kind;
  RankId victim;
  int64_t at_step;  // of the victim's own steps
  Duration lasts{};
  RankId peer = 0;  // kNetworkCut
};

struct SimScript {
  uint64_t seed = 0;
  int32_t num_ranks = 4;
  std::string first;
  std::vector<std::string> switches;
  std::vector<SimFault> faults;
  engine::Verify verify = engine::Verify::kFull;
  engine::Mode mode = engine::Mode::kKeep;
  std::optional<ByteCount> budget = {};  // more than enough; the ranks agree on phases all the same
  int32_t phases = 1;                    // at least
  bool rendezvous = true;
  bool silent_deaths = false;
  int64_t impatience = 0;
  Duration jump{};
  bool overlapping_requests = false;
  Duration store_latency{};  // of each way, at most
  // Just before its first move this rank's copy of the tied tensor has drifted from the others' by
  // one bit; if the switch is rolled back, the bit is mended before the next step.
  std::optional<RankId> drifted;
  // Drawn from `seed`: degrees, ranks, zero, buffers, faults.
  static SimScript FromSeed(uint64_t seed);
  std::string ToString() const;
};

struct SimResult {
  std::vector<std::string> violations;
  int committed = 0;
  int rolled_back = 0;               // decided abort
  std::vector<std::string> reasons;  // of them, as decided
  int lost = 0;                      // of them, lost
  int streamed = 0;                  // of the committed ones, in mode stream
  int deaths = 0;
  int64_t steps = 0;
  std::map<RankId, int64_t> steps_of_rank;
  std::string ToString() const;
};

// Runs one job to its end and checks:
//  - nobody hangs; at the end every rank has ended;
//  - commit is written only when all participants' verified votes are there and say yes;
//  - all ranks that learn an outcome of a switch learn the same one; Lost only in mode stream, and
//  with boxes that are lost
//    only if some rank may have died;
//  - nobody trains or frees a layout's instance before the decision;
//  - before every step and at the end each rank holds exactly the elements that an independent
//  oracle tells for its own
//    last step, bit for bit, and the step counter that belongs to them;
//  - if nobody died, a switch that was rolled back commits when it is asked for again;
//  - each switch is reported at most once, and exactly once with only request and decision left in
//  the store if nobody died.
SimResult RunSim(const SimScript& script);

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SIM_WORLD_H_
