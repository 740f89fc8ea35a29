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

// The most ranks of a layout, and the most of each degree.
inline constexpr int32_t kMaxWorldSize = 1 << 20;

// How the parameters of a stage lie in flat buffers, and how those are cut over the positions that
// hold the same parameters: dp x cp of them (dense), or edp (experts), n below. A bucket of `real`
// elements has RoundUp(real, lcm(end_alignment, end_alignment_per_dp * n)) elements when it is cut
// (zero >= 1), else RoundUp(real, end_alignment); part i of n is [i * B / n, (i + 1) * B / n).
// Everything in a bucket that is no parameter element is padding: zero, never moved. No bucket
// spans two chunks (vpp) or mixes experts with others.
struct BufferRule {
  // The parameters of a stage by home (embedding, layers ascending, head), within a home as they
  // were registered, a tied one at its first home on the stage; or this whole list back to front.
  enum class Order : uint8_t { kForward, kReverse };
  enum class Cut : uint8_t {
    kContiguous,     // one bucket per chunk of the stage
    kBucketed,       // one bucket per home: the embedding, each layer, the head
    kBucketedElems,  // a bucket is closed once it holds at least bucket_elems elements
    kParam,          // one bucket per parameter
    // One bucket per parameter, cut in ceil chunks of rows (FSDP2); padded to n equal chunks. Rows
    // are those of the local part seen as a matrix: its first Parameter::row_axes axes flattened,
    // row-major: of qkv the rows of all heads. A stack of experts [E, 2, M, hidden] with row_axes 3
    // has E * 2 * M rows, those of one expert after those of the other, so that a chunk may end
    // inside an expert; with row_axes 1, for a host that keeps whole experts and whose dimension 0
    // is the expert, it has E rows.
    kDim0,
    // Megatron-Core's distributed optimizer: reverse, starts at multiples of 64, ends at multiples
    // of lcm(n, 128), buckets of bucket_elems (0: max(40M, 1M * dp * cp)) in the first chunk and
    // one bucket in the others, tied parameters apart; with zero=0 no alignment.
    kMegatron
  };
  Order order = Order::kForward;
  Cut cut = Cut::kBucketed;
  int64_t bucket_elems = 0;     // kBucketedElems and kMegatron only
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
  int32_t cp = 0;
  friend bool operator==(const Role&, const Role&) = default;
};

// Coordinates of the same rank in the grid of the experts.
struct ExpertRole {
  int32_t etp = 0;
  int32_t ep = 0;
  int32_t edp = 0;
  int32_t pp = 0;
  friend bool operator==(const ExpertRole&, const ExpertRole&) = default;
};

struct Layout {
  int32_t tp = 1;
  int32_t pp = 1;
  int32_t dp = 1;
  // Cut over dp: 0 nothing, 1 master and moments, 2 gradients too, 3 parameters too.
  int32_t zero = 0;
  BufferRule buffer = {};
  std::vector<int32_t> split = {};  // layers per chunk, pp * vpp of them; empty: balanced
  std::vector<RankId> ranks = {};   // rank at each position; empty: position p is rank p
  // Axes from the smallest stride to the largest; a permutation of tp, cp, dp, pp. cp left out
  // follows tp; ep may stand in it and means nothing, as in Megatron's strings.
  std::string order = "tp-dp-pp";
  int32_t cp = 1;  // context parallelism: replicas as dp is
  int32_t ep = 1;  // the experts' own grid over the same positions: etp x ep x edp x pp
  int32_t etp = 1;
  int32_t vpp = 1;  // chunks of layers per stage; chunk c lies on stage c mod pp
  // A permutation of etp, ep, edp, pp; empty: `order` with "etp-ep" for tp and edp for dp. With
  // ep=1 and etp=1 the positions of a stage in their order are edp.
  std::string eorder = {};

  int32_t world_size() const { return tp * cp * pp * dp; }
  int32_t edp() const { return tp * cp * dp / (etp * ep); }
  // Megatron's rule: with ep=1 and etp=tp experts are parameters like any other.
  bool ExpertsHaveOwnGrid() const { return ep != 1 || etp != tp; }
  int32_t PositionOf(const Role& role) const;
  Role RoleAt(int32_t position) const;
  ExpertRole ExpertRoleAt(int32_t position) const;
  // Distance in positions of neighbours on "tp", "cp", "dp" or "pp".
  int32_t Stride(std::string_view axis) const;
  int32_t ExpertStride(std::string_view axis) const;  // on "etp", "ep", "edp" or "pp"
  bool EdpIsTheStage() const { return ep == 1 && etp == 1 && eorder.empty(); }
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
  LayerRange LayersOf(int32_t stage, int32_t num_layers) const;  // vpp must be 1
  int32_t StageOfLayer(int32_t layer, int32_t num_layers) const;
  int32_t num_chunks() const { return pp * vpp; }
  LayerRange LayersOfChunk(int32_t chunk, int32_t num_layers) const;
  int32_t ChunkOfLayer(int32_t layer, int32_t num_layers) const;

  // Degrees positive, ranks distinct, as many as the degrees need and all below `num_ranks` (if
  // given), split has pp * vpp entries that sum to num_layers, zero in 0..3, the experts' grid
  // covers the same positions with the same stages, orders are permutations. The error names values
  // and what would be right.
  Status Validate(int32_t num_layers, std::optional<int32_t> num_ranks) const;
  // The same without what depends on the model.
  Status ValidateRanks(std::optional<int32_t> num_ranks) const;

  // The canonical SPEC; ParseLayout(l.ToString()) == l. Degrees of 1 and defaults are left out;
  // "dp" is always told.
  std::string ToString() const;
  uint64_t Fingerprint() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Parses "tp=2,pp=2,dp=2,cp=1,ep=4,etp=1,vpp=1,zero=1,zero_order=forward-bucketed,split=4+3,
// ranks=0-3+6,order=tp-cp-dp-pp,eorder=etp-ep-edp-pp" (no blanks).
// zero_order = (forward|reverse)-(contiguous|bucketed|bucketed:ELEMS|param|dim0)
//              [-start:N][-end:N][-endx:N] | megatron[:ELEMS].
// Degrees left out are 1; `dp` left out is num_ranks / (tp * cp * pp) if `ranks=` or num_ranks
// fixes it, else 1.
Result<Layout> ParseLayout(std::string_view spec, std::optional<int32_t> num_ranks = std::nullopt);

// The `ranks=` form of a list of ranks: {0, 1, 2, 3, 6} is "0-3+6".
std::string FormatRanks(const std::vector<RankId>& ranks);

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_LAYOUT_H_
