// Layout: the one type that owns all degree arithmetic — which parallelism, over which ranks, in
// which order.
//
//   Layout l = *ParseLayout("tp=2,pp=3,dp=1,split=3+2+2,zero=1,ranks=0-5");
//   l.world_size() == 6;  l.PositionOf({.tp = 1, .dp = 0, .pp = 2}) == 5;  l.RankAt(5) == 5
//
// A position is an index in the layout's grid, 0 .. world_size() - 1; a role is the same place as
// coordinates.
#ifndef DYNATRAIN_VPS_LAYOUT_H_
#define DYNATRAIN_VPS_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::vps {

// How the parameters of a stage lie in flat buffers, and how those are cut over data-parallel
// positions. A bucket of `real` elements has RoundUp(real, lcm(end_alignment, end_alignment_per_dp
// * dp)) elements when it is cut over dp (zero >= 1), else RoundUp(real, end_alignment); part i of
// n is [i * B / n, (i + 1) * B / n). Everything in a bucket that is no parameter element is
// padding: zero, never moved.
struct BufferRule {
  // The parameters of a stage by home (embedding, layers ascending, head), within a home as they
  // were registered, a tied one at its first home on the stage; or this whole list back to front.
  enum class Order : uint8_t { kForward, kReverse };
  enum class Cut : uint8_t {
    kContiguous,    // one bucket per stage
    kBucketed,      // one bucket per home: the embedding, each layer, the head
    kBucketedElems  // a bucket is closed once it holds at least bucket_elems elements
  };
  Order order = Order::kForward;
  Cut cut = Cut::kBucketed;
  int64_t bucket_elems = 0;     // kBucketedElems only
  int64_t start_alignment = 1;  // each parameter starts at a multiple of it inside its bucket
  int64_t end_alignment = 1;
  int64_t end_alignment_per_dp = 1;
  friend bool operator==(const BufferRule&, const BufferRule&) = default;
};

// Coordinates of a rank in a layout.
struct Role {
  int32_t tp = 0;
  int32_t dp = 0;
  int32_t pp = 0;
  friend bool operator==(const Role&, const Role&) = default;
};

struct Layout {
  int32_t tp = 1;
  int32_t pp = 1;
  int32_t dp = 1;
  int32_t zero = 0;  // 0: everything replicated over dp; 1: master and moments cut over dp
  BufferRule buffer = {};
  std::vector<int32_t> split = {};  // layers per stage; empty: balanced
  std::vector<RankId> ranks = {};   // rank at each position; empty: position p is rank p
  // Axes from the smallest stride to the largest; a permutation of tp, dp, pp.
  std::string order = "tp-dp-pp";

  int32_t world_size() const { return tp * pp * dp; }
  int32_t PositionOf(const Role& role) const;
  Role RoleAt(int32_t position) const;
  int32_t Stride(
      std::string_view axis) const;  // distance in positions of neighbours on "tp", "dp" or "pp"
  RankId RankAt(int32_t position) const;
  std::optional<int32_t> PositionOfRank(
      RankId rank) const;  // none: the rank is idle in this layout
  std::optional<Role> RoleOfRank(RankId rank) const;
  std::vector<RankId> Ranks() const;  // by position
  // Layers [begin, end) of a stage of a model of `num_layers`.
  struct LayerRange {
    int32_t begin = 0;
    int32_t end = 0;
  };
  LayerRange LayersOf(int32_t stage, int32_t num_layers) const;
  int32_t StageOfLayer(int32_t layer, int32_t num_layers) const;

  // Degrees positive, ranks distinct, as many as the degrees need and all below `num_ranks` (if
  // given), split has pp entries that sum to num_layers, zero in 0..1, order a permutation. The
  // error names values and what would be right.
  Status Validate(int32_t num_layers, std::optional<int32_t> num_ranks) const;
  // The same without what depends on the model.
  Status ValidateRanks(std::optional<int32_t> num_ranks) const;

  // The canonical SPEC; ParseLayout(l.ToString()) == l. Degrees of 1 and defaults are left out;
  // "dp" is always told.
  std::string ToString() const;
  uint64_t Fingerprint() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Parses "tp=2,pp=2,dp=2,zero=1,zero_order=forward-bucketed,split=4+3,ranks=0-3+6,order=tp-dp-pp".
// zero_order = (forward|reverse)-(contiguous|bucketed|bucketed:ELEMS)[-start:N][-end:N][-endx:N].
// Degrees left out are 1; `dp` left out is num_ranks / (tp * pp) if `ranks=` or num_ranks fixes it,
// else 1. Keys that this version does not have (cp, ep, etp, vpp, eorder; zero above 1) are refused
// by name.
Result<Layout> ParseLayout(std::string_view spec, std::optional<int32_t> num_ranks = std::nullopt);

// The `ranks=` form of a list of ranks: {0, 1, 2, 3, 6} is "0-3+6".
std::string FormatRanks(const std::vector<RankId>& ranks);

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_LAYOUT_H_
