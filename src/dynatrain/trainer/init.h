// First values of a training state: a pure function of (seed, parameter name, logical index), so
// that every layout starts from the same logical tensors.
#ifndef DYNATRAIN_TRAINER_INIT_H_
#define DYNATRAIN_TRAINER_INIT_H_

#include <cstdint>
#include <string_view>

#include "dynatrain/base/status.h"
#include "dynatrain/engine/state.h"
#include "dynatrain/models/config.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::trainer {

// A standard normal number for row-major element `index` of the tensor (Box and Muller 1958).
double NormalAt(uint64_t seed, std::string_view name, int64_t index);

// Fills the state of `rank`: norms 1, attention's and the MLP's output projections normal with
// 0.02 / sqrt(2 * layers), every other parameter normal with 0.02, moments 0, padding 0. A
// master gets the fp32 number, a bf16 parameter that number rounded. Refuses other dtypes.
Status InitialiseState(const models::ModelConfig& config, const vps::ShardMap& map, RankId rank,
                       uint64_t seed, engine::StateBuffers* state);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_INIT_H_
