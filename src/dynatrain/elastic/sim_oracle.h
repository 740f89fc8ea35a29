// What the state of a simulated job must be: an oracle that knows nothing of layouts.
#ifndef DYNATRAIN_ELASTIC_SIM_ORACLE_H_
#define DYNATRAIN_ELASTIC_SIM_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dynatrain/elastic/switch.h"

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
  const vps::StateCatalog& catalog = instance.map->catalog();
  for (const vps::Shard& shard : shards) {
    const vps::Box whole = vps::Box::Whole(catalog.shape_of(shard.tensor));
    std::byte* data = state->bytes(shard.buffer).data();
    vps::Coords at = shard.box.lo();
    for (int64_t i = 0; i < shard.box.elems(); ++i) {
      int64_t offset = shard.offset;
      for (int axis = 0; axis < at.dims(); ++axis) {
        offset += (at[axis] - shard.box.lo()[axis]) * shard.strides[axis];
      }
      visit(shard.tensor, vps::FlatIndex(whole, at), data + offset * 4);
      for (int axis = at.dims() - 1; axis >= 0; --axis) {
        if (++at[axis] < shard.box.hi()[axis]) break;
        at[axis] = shard.box.lo()[axis];
      }
    }
  }
}

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SIM_ORACLE_H_
