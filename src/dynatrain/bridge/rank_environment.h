// RankEnvironment: which rank this process is and where the ranks of its job meet, as torchrun,
// srun and other launchers of one process per rank tell in the environment.
#ifndef DYNATRAIN_BRIDGE_RANK_ENVIRONMENT_H_
#define DYNATRAIN_BRIDGE_RANK_ENVIRONMENT_H_

#include <functional>
#include <optional>
#include <string>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/bridge/c10d_groups.h"
#include "dynatrain/bridge/c10d_store.h"

namespace dynatrain::bridge {

struct RankEnvironment {
  RankId rank = 0;
  int32_t num_ranks = 1;
  StoreAddress store;
  // Whether this process is to serve the store: rank 0, unless the launcher's own agent does.
  bool serves_store = false;
  // Where groups listen. Empty: the address from which this machine reaches the store.
  GlooOptions gloo = {};
};

// The value of an environment variable; none if it is not set.
using EnvironmentReader = std::function<std::optional<std::string>(const char* name)>;
// ::getenv.
EnvironmentReader ProcessEnvironment();

// None if no launcher has told anything: neither RANK nor SLURM_PROCID is set. Else, in this order:
//
//   torchrun and its like   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; the store is the agent's if
//                           TORCHELASTIC_USE_AGENT_STORE is True, under the run's id and attempt
//   srun                    SLURM_PROCID, SLURM_NTASKS; MASTER_ADDR, or the step's first node;
//                           MASTER_PORT, or 12000 + SLURM_JOB_ID mod 20000
//
// GLOO_SOCKET_IFNAME names the interface for groups. kInvalidArgument, naming the variable, its
// value and what would be right, if one is missing or makes no sense.
Result<std::optional<RankEnvironment>> ReadRankEnvironment(const EnvironmentReader& read);

// The first node of a Slurm node list: "gpu[07-09,12],login" -> "gpu07".
std::string FirstNode(const std::string& node_list);

// The numeric address of this machine's interface that leads to `store`; no packet is sent.
Result<std::string> AddressTowards(const StoreAddress& store);

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_RANK_ENVIRONMENT_H_
