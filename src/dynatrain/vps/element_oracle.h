// For tests: what a layout means, element by element, written without boxes, strides or holder
// sets.
//
// ElementOracle lays every parameter of every rank out into flat buffers one element at a time.
// State holds the bytes of all ranks of a shard map; Reshard moves them to another map by looking
// up each element's first holder.
#ifndef DYNATRAIN_VPS_ELEMENT_ORACLE_H_
#define DYNATRAIN_VPS_ELEMENT_ORACLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps::testing {

// One logical element: a tensor and a row-major index in it. Padding has tensor -1.
struct Element {
  TensorId tensor = -1;
  int64_t index = 0;
  friend auto operator<=>(const Element&, const Element&) = default;
};

// The buffers of one rank: every element of each, in order.
struct OracleBuffer {
  Kind kind;
  std::vector<Element> elements;
  friend bool operator==(const OracleBuffer&, const OracleBuffer&) = default;
};

class ElementOracle {
 public:
  ElementOracle(const StateCatalog& catalog, const Layout& layout);
  const std::vector<OracleBuffer>& BuffersOf(RankId rank) const { return buffers_.at(rank); }
  // The ranks that hold an element, ascending.
  const std::vector<RankId>& HoldersOf(const Element& element) const {
    return holders_.at(element);
  }

 private:
  void AddBuffers(const StateCatalog& catalog, RankId rank,
                  const std::vector<ParameterId>& parameters,
                  const std::function<std::optional<Element>(Kind, size_t)>& element_at);

  std::map<RankId, std::vector<OracleBuffer>> buffers_;
  std::map<Element, std::vector<RankId>> holders_;
};

// The buffers of a rank as its shards say, element by element; fails the test where two shards
// meet.
std::vector<OracleBuffer> PaintedBuffers(const ShardMap& map, RankId rank);

// All elements of a box of a tensor.
std::vector<Element> ElementsOf(const StateCatalog& catalog, TensorId tensor, const Box& box);

// The bytes of every buffer of every rank.
using State = std::map<RankId, std::vector<std::vector<std::byte>>>;

// A value for every element; its bits are written in the element's width. Padding is zero.
using ValueFunction = std::function<uint64_t(const Element&)>;

// Different for every element of up to 2^20 tensors of up to 2^12 elements, as far as the width
// allows.
uint64_t DistinctValue(const Element& element);

State MakeState(const ShardMap& map, const ValueFunction& value);

// `state` of map `from`, moved to map `to`.
State Reshard(const ShardMap& from, const State& state, const ShardMap& to);

}  // namespace dynatrain::vps::testing

#endif  // DYNATRAIN_VPS_ELEMENT_ORACLE_H_
