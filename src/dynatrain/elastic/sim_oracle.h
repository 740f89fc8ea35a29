// What the state of a simulated job must be: an oracle that knows nothing of layouts.
#ifndef DYNATRAIN_ELASTIC_SIM_ORACLE_H_
#define DYNATRAIN_ELASTIC_SIM_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dynatrain/elastic/switch.h"
#include "dynatrain/vps/shard_elements.h"

namespace dynatrain::elastic {

// Uneven in everything: axes that do not divide, a replicated vector, a tie over the pipeline's
// ends, a frozen parameter. 3 layers.
std::shared_ptr<const vps::StateCatalog> TinyCatalog();

// What element `index` of a tensor is after `step` training steps, as raw bits.
uint32_t Element(vps::TensorId tensor, int64_t index, int64_t step);

// Calls visit(tensor, index in the whole tensor, pointer to the element) for all elements of a
// rank.
template <class Visit>
void VisitElements(const LayoutInstance& instance, const std::vector<vps::Shard>& shards,
                   engine::StateBuffers* state, Visit visit) {
  for (const vps::Shard& shard : shards) {
    std::byte* data = state->bytes(shard.buffer).data();
    vps::ForEachElement(
        instance.map->catalog().shape_of(shard.tensor), shard,
        [&](int64_t index, int64_t element) { visit(shard.tensor, index, data + element * 4); });
  }
}

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SIM_ORACLE_H_
