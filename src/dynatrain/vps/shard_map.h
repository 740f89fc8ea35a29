// ShardMap: who holds which box. F_P of the paper and its inverse, for anything that holds state: a
// layout (LayoutShardMap computes) or a list (ExplicitShardMap: survivors, a checkpoint, a foreign
// framework). Every transfer in the system is shard map -> shard map.
#ifndef DYNATRAIN_VPS_SHARD_MAP_H_
#define DYNATRAIN_VPS_SHARD_MAP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/vps/box.h"
#include "dynatrain/vps/catalog.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::vps {

using BufferIndex = int32_t;  // index in ShardMap::BuffersOf(rank)

// One flat piece of memory of a rank. Elements that belong to no shard are padding: zero.
struct Buffer {
  std::string name;  // "exp_avg/layers.3[1/2]", the same in every layout for the same content
  Kind kind;
  DType dtype;
  int64_t elems = 0;
  ByteCount bytes() const { return elems * ElemBytes(dtype); }
  friend bool operator==(const Buffer&, const Buffer&) = default;
};

// One affine piece held by a rank: logical element x of the box lies at element
// offset + sum_a (x[a] - box.lo[a]) * strides[a] of the buffer.
struct Shard {
  TensorId tensor;
  Box box;  // never empty
  BufferIndex buffer;
  int64_t offset;
  Coords strides;
  friend bool operator==(const Shard&, const Shard&) = default;
};

// rank <-> position; shared by all holder sets of a map. Immutable.
class RankTable {
 public:
  explicit RankTable(std::vector<RankId> ranks);  // distinct, >= 0
  RankId RankAt(int64_t position) const { return ranks_[static_cast<size_t>(position)]; }
  std::optional<int64_t> PositionOf(RankId rank) const;
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }

 private:
  std::vector<RankId> ranks_;
  std::vector<int64_t> positions_;  // by rank; -1 = none
};

// The ranks that hold one box, as a union of disjoint products of strided ranges of positions,
// never as a list (a list is the union of single positions). Indices run over the products in
// order, each product in ascending position.
class HolderSet {
 public:
  struct Range {
    int64_t stride;
    int64_t count;
    friend auto operator<=>(const Range&, const Range&) = default;
  };
  struct Product {  // { start + sum_k i_k * ranges[k].stride }, ranges from the largest stride to
                    // the smallest, counts > 1
    int64_t start = 0;
    std::vector<Range> ranges;
    int64_t size() const;
    friend auto operator<=>(const Product&, const Product&) = default;
  };

  // Products are disjoint, each with ranges that step over all that smaller ranges span. They are
  // brought to a canonical form: sorted, without ranges of one, and as one product where the union
  // is one.
  HolderSet(std::shared_ptr<const RankTable> table, std::vector<Product> products);
  // The set of these positions, which ascend.
  static HolderSet FromPositions(std::shared_ptr<const RankTable> table,
                                 const std::vector<int64_t>& positions);

  int64_t size() const { return size_; }
  RankId At(int64_t index) const;                     // cost: number of products and ranges
  std::vector<RankId> List() const;                   // all, by index
  std::optional<int64_t> IndexOf(RankId rank) const;  // likewise
  bool Contains(RankId rank) const { return IndexOf(rank).has_value(); }
  const std::vector<Product>& products() const { return products_; }
  // Orders by products; equal only if the sets list equal positions in equal order.
  friend bool operator==(const HolderSet& a, const HolderSet& b) {
    return a.products_ == b.products_;
  }
  friend auto operator<=>(const HolderSet& a, const HolderSet& b) {
    return a.products_ <=> b.products_;
  }

 private:
  std::shared_ptr<const RankTable> table_;
  std::vector<Product> products_;
  int64_t size_ = 0;
};

// SEAM. Immutable; any thread may read. Both questions cost what their answer is long, not what the
// world is.
class ShardMap {
 public:
  using HolderVisitor = std::function<void(const Box& part, const HolderSet& holders)>;

  virtual ~ShardMap() = default;
  virtual const StateCatalog& catalog() const = 0;
  virtual std::vector<RankId> Ranks() const = 0;  // ranks that may hold anything

  // The buffers of a rank and the shards in them, ordered by (tensor, box). No box of a tensor
  // overlaps another on the same rank. Empty for a rank that holds nothing.
  virtual std::vector<Buffer> BuffersOf(RankId rank) const = 0;
  virtual std::vector<Shard> ShardsOf(RankId rank) const = 0;

  // Calls visit once for each part of `box`: disjoint, covering all of it that anybody holds, each
  // with everyone who holds it. A part is (a box of the map's own partition of the tensor) ∩ box,
  // the same boxes whatever is asked, in an order that depends on the map and `box` only.
  virtual void VisitHolders(TensorId tensor, const Box& box, const HolderVisitor& visit) const = 0;

  virtual uint64_t Fingerprint() const = 0;
};

// One parameter inside a bucket of a stage, or one piece of it: its box and where it starts. A part
// has one piece of a parameter unless its split is in groups or rows, or it is stored in parts.
struct BucketEntry {
  ParameterId parameter;
  Box box;         // row-major in the bucket; may be empty
  int64_t offset;  // elements from the bucket's start
  friend bool operator==(const BucketEntry&, const BucketEntry&) = default;
};

// A flat run of a stage's parameters: what the data-parallel reduction, ZeRO and the optimizer work
// on.
struct Bucket {
  std::string name;  // "layers.3", "embedding", "stage" ...
  std::vector<BucketEntry> entries;
  int64_t real_elems = 0;  // end of the last entry
  int64_t elems = 0;       // with padding at the end
  // Frozen parameters lie in buckets of their own, which no optimizer touches.
  bool trainable = true;
  bool experts = false;  // lies in the experts' grid: equal for all edp, not all dp positions
};

struct Piece;
class Placement;

// The shard map of a layout.
class LayoutShardMap final : public ShardMap {
 public:
  // Refuses (naming tensor, axis, extent, degree and rule) layouts that do not validate, that cut
  // inside a declared block, and those that Content or padding beyond 2^58 elements rule out.
  static Result<std::shared_ptr<const LayoutShardMap>> Make(
      std::shared_ptr<const StateCatalog> catalog, const Layout& layout);

  const Layout& layout() const { return layout_; }
  const std::shared_ptr<const StateCatalog>& shared_catalog() const { return catalog_; }

  // The buckets of (stage, tp position), in buffer order; equal for all dp positions.
  // Those of the experts' grid are not among them.
  std::vector<Bucket> BucketsOf(int32_t stage, int32_t tp) const;
  // All buckets of a rank: BucketsOf its stage and tp position, then those of its experts.
  std::vector<Bucket> BucketsOfRank(RankId rank) const;
  // Whether `kind` is cut over dp in this layout; then a rank's buffer of bucket b has elems / n
  // elements, n = dp * cp, or edp for a bucket of experts.
  bool CutOverDp(Kind kind) const;
  // Index in BuffersOf(rank) of the buffer that holds `kind` of bucket `bucket` (index in
  // BucketsOfRank, whose first ones are BucketsOf); none if no parameter of the bucket has that
  // kind.
  std::optional<BufferIndex> BufferOf(RankId rank, Kind kind, int32_t bucket) const;

  const StateCatalog& catalog() const override { return *catalog_; }
  std::vector<RankId> Ranks() const override { return layout_.Ranks(); }
  std::vector<Buffer> BuffersOf(RankId rank) const override;
  std::vector<Shard> ShardsOf(RankId rank) const override;
  void VisitHolders(TensorId tensor, const Box& box, const HolderVisitor& visit) const override;
  uint64_t Fingerprint() const override;

 private:
  LayoutShardMap(std::shared_ptr<const StateCatalog> catalog, const Layout& layout);
  struct BufferPlace {  // one buffer of a rank
    int32_t grid;
    int32_t stage;
    int32_t part;
    int32_t slice;
    int32_t run;     // index of the bucket in its part
    int32_t bucket;  // index in BucketsOfRank
    Kind kind;
    DType dtype;
    BufferIndex buffer;
  };
  // The buffers of a rank in order: by bucket, then by kind.
  void VisitBuffers(RankId rank, const std::function<void(const BufferPlace&)>& visit) const;
  void AppendBuckets(bool experts, int32_t stage, int32_t part, std::vector<Bucket>* buckets) const;
  // Visits `asked`, which lies in the piece.
  void VisitPiece(TensorId tensor, const Piece& piece, const Box& asked,
                  const HolderVisitor& visit) const;

  std::shared_ptr<const StateCatalog> catalog_;
  Layout layout_;
  std::shared_ptr<const RankTable> table_;
  std::shared_ptr<const Placement> placement_;
};

// The shard map of a list.
class ExplicitShardMap final : public ShardMap {
 public:
  struct Holding {
    RankId rank;
    std::vector<Buffer> buffers;
    std::vector<Shard> shards;
  };
  // Refuses shards outside their tensor or buffer, overlapping shards of one rank, unknown tensors,
  // what Content rules out, and — unless `allow_missing` — elements that nobody holds; names tensor,
  // box and ranks.
  static Result<std::shared_ptr<const ExplicitShardMap>> Make(
      std::shared_ptr<const StateCatalog> catalog, std::vector<Holding> holdings,
      bool allow_missing = false);
  // The same holdings as `map`, as a list; with `ranks`, only what those ranks hold.
  static Result<std::shared_ptr<const ExplicitShardMap>> Copy(
      std::shared_ptr<const StateCatalog> catalog, const ShardMap& map,
      const std::vector<RankId>& ranks, bool allow_missing = false);

  const StateCatalog& catalog() const override { return *catalog_; }
  std::vector<RankId> Ranks() const override;
  std::vector<Buffer> BuffersOf(RankId rank) const override;
  std::vector<Shard> ShardsOf(RankId rank) const override;
  void VisitHolders(TensorId tensor, const Box& box, const HolderVisitor& visit) const override;
  uint64_t Fingerprint() const override;

 private:
  struct Part {
    Box box;
    HolderSet holders;
  };
  ExplicitShardMap(std::shared_ptr<const StateCatalog> catalog, std::vector<Holding> holdings);

  std::shared_ptr<const StateCatalog> catalog_;
  std::vector<Holding> holdings_;  // by rank
  std::shared_ptr<const RankTable> table_;
  std::vector<std::vector<Part>>
      parts_;  // by tensor: every part lies in one shard of each of its holders
};

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_SHARD_MAP_H_
