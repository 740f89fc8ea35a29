// For tests: what a layout means, element by element, written without boxes, strides or holder
// sets.
//
// ElementOracle lays every parameter of every rank out into flat buffers one element at a time.
#ifndef DYNATRAIN_VPS_ELEMENT_ORACLE_H_
#define DYNATRAIN_VPS_ELEMENT_ORACLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "dynatrain/vps/element_state.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps::testing {

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

// What every buffer of every rank of a layout should hold: by the oracle alone, but for the width of
// a buffer's elements.
State OracleState(const LayoutShardMap& map, const ValueFunction& value);

}  // namespace dynatrain::vps::testing

#endif  // DYNATRAIN_VPS_ELEMENT_ORACLE_H_
