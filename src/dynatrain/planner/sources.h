// Source choice in closed form: who sends a piece to whom, for all pieces with the same holders H,
// needers N and derivers D (needers that compute the piece instead, see PlanOptions::derive).
//
// A needer in H keeps, one in D computes. The others form feeds: on a node v with holders, these
// feed the node's needers; all of H feeds the nodes without holders. A feed has sources and takers:
// a taker is one needer or, with relays, the needers of a node without a source for each.
//
// A piece of b bytes is cut along an axis into S = clamp(b / stripe_bytes, 1, W) stripes, W the
// larger of the number of sources and the largest taker, at most kMaxStripes. Stripe s of taker t
// is slot number n + t * S + s of its feed, n the slots of the pieces before it in (tensor, box)
// order. A slot takes turns among h sources: number (D_h(slot) + start) mod h, where D_h is the sum
// of the slot's lowest digits in base h: 6 for h = 2, 3 for h = 3 and 4, else 2. So each h slots in
// a row go to h different sources, and steps of other lengths spread as well: patterns that repeat,
// as the tensors of layers do, do not meet the same source each time. (All digits would not: their
// sum leans to one side in steps that base - 1 or base + 1 divides.) Inside a taker of k ranks,
// stripe number m of the feed enters at number (D_k(m) + start) mod k. `start` is the first
// needer's number, or what a SourceTable says.
#ifndef DYNATRAIN_PLANNER_SOURCES_H_
#define DYNATRAIN_PLANNER_SOURCES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dynatrain/base/types.h"
#include "dynatrain/planner/route.h"
#include "dynatrain/planner/topology.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::planner {

inline constexpr int64_t kMaxStripes = 16;

// How many digits take part in D_base.
int DigitsOf(int64_t base);
// Sum of the lowest `digits` digits of `value` in base `base`, modulo base; 0 for base 1.
// Precondition: value >= 0.
int64_t DigitSum(int64_t value, int64_t base, int digits);

// `box` cut into at most `stripes` boxes of about equal size along the first axis that is long
// enough (or else the longest), in order. Precondition: stripes >= 1, box not empty.
std::vector<vps::Box> CutIntoStripes(const vps::Box& box, int64_t stripes);

// The part of one rank in the transfers of one (H, N, D). Pieces are dealt in (tensor, box) order.
class SourceChoice {
 public:
  SourceChoice(const vps::HolderSet& holders, const vps::HolderSet& needers,
               const vps::HolderSet* derivers, const Topology& topology, RankId rank,
               const PlanOptions& options);

  // Adds what the rank does with the piece to the lists and sums of the route, in no order.
  void Deal(const Piece& piece, ByteCount elem_bytes, Route* route);

 private:
  struct Feed {
    std::vector<RankId> sources;
    // Taker t is taker_ranks[taker_begins[t], taker_begins[t + 1]).
    std::vector<RankId> taker_ranks;
    std::vector<size_t> taker_begins = {0};
    int64_t start = 0;
    int64_t ways = 1;
    int64_t self_source = -1;  // this rank among the sources; -1: it is none
    int64_t self_taker = -1;   // the taker this rank is in; -1: none
    int64_t slots = 0;         // of the pieces dealt so far
    int64_t stripes = 0;       // likewise

    int64_t num_takers() const { return static_cast<int64_t>(taker_begins.size()) - 1; }
    std::span<const RankId> Taker(int64_t taker) const;
    void EndTaker() { taker_begins.push_back(taker_ranks.size()); }
    RankId SourceOf(int64_t slot) const;
    RankId EntryOf(int64_t taker, int64_t stripe) const;
  };

  void FillFeeds(const vps::HolderSet& holders, const vps::HolderSet& needers,
                 const vps::HolderSet* derivers, const Topology& topology);
  void Finish(bool relays, int64_t start, Feed* feed);
  void DealFeed(const Piece& piece, ByteCount elem_bytes, Feed* feed, Route* route) const;
  void Send(const Piece& piece, const std::vector<vps::Box>& stripes, ByteCount elem_bytes,
            const Feed& feed, Route* route) const;
  void Take(const Piece& piece, const std::vector<vps::Box>& stripes, ByteCount elem_bytes,
            const Feed& feed, Route* route) const;

  RankId rank_;
  ByteCount stripe_bytes_;
  bool holds_ = false;
  bool needs_ = false;
  bool derives_ = false;
  std::vector<Feed> feeds_;  // those that this rank is in
};

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_SOURCES_H_
