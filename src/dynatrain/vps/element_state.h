// For tests: the state of all ranks of a shard map, with a value for every logical element.
#ifndef DYNATRAIN_VPS_ELEMENT_STATE_H_
#define DYNATRAIN_VPS_ELEMENT_STATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps::testing {

// One logical element: a tensor and a row-major index in it. Padding has tensor -1.
struct Element {
  TensorId tensor = -1;
  int64_t index = 0;
  friend auto operator<=>(const Element&, const Element&) = default;
};

// All elements of a box of a tensor.
std::vector<Element> ElementsOf(const StateCatalog& catalog, TensorId tensor, const Box& box);

// The bytes of every buffer of every rank.
using State = std::map<RankId, std::vector<std::vector<std::byte>>>;

// A value for every element; its bits are written in the element's width. Padding is zero.
using ValueFunction = std::function<uint64_t(const Element&)>;

// Different for every element of up to 2^20 tensors of up to 2^12 elements, as far as the width
// allows.
uint64_t DistinctValue(const Element& element);

// By the map's own shards; what a layout should hold by an oracle is OracleState.
State MakeState(const ShardMap& map, const ValueFunction& value);

// `state` of map `from`, moved to map `to`: looks up each element's first holder.
State Reshard(const ShardMap& from, const State& state, const ShardMap& to);

}  // namespace dynatrain::vps::testing

#endif  // DYNATRAIN_VPS_ELEMENT_STATE_H_
