// Source choice in closed form: who sends a piece to whom, for all pieces with the same holders and needers.
#ifndef DYNATRAIN_PLANNER_SOURCES_H_
#define DYNATRAIN_PLANNER_SOURCES_H_

#include <cstdint>
#include <vector>

#include "dynatrain/base/types.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

// The part of `rank` in the transfers of one (holder set, needer set). See route.h for the rule: needer number i of N takes
// piece `ordinal` from near holder number (ordinal * |N| + i) mod |near|.
class SourceChoice {
 public:
  SourceChoice(const vps::HolderSet& holders, const vps::HolderSet& needers, const Topology& topology, RankId rank);

  bool keeps() const { return holds_ && needs_; }
  bool receives() const { return needs_ && !holds_; }
  // Precondition: receives().
  RankId SourceOf(int64_t ordinal) const;
  // Who takes piece `ordinal` from this rank, ascending. Empty if the rank does not hold it.
  std::vector<RankId> TargetsOf(int64_t ordinal) const;

 private:
  // Needers that choose among the same holders, by needer number; this rank is number `self` of `near`.
  struct Audience {
    int64_t self = 0;
    int64_t near = 0;
    std::vector<std::vector<RankId>> by_residue;  // of the needer's number mod `near`
    void Add(int64_t needer, RankId rank);
    void AppendTargets(int64_t first, std::vector<RankId>* targets) const;
  };

  int64_t num_needers_;
  bool holds_ = false;
  bool needs_ = false;
  int64_t needer_ = 0;             // this rank's number in N
  std::vector<RankId> near_;       // what a receiving rank chooses from
  Audience own_node_, far_nodes_;  // of a holding rank
};

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_SOURCES_H_
