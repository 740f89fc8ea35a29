// What exists: the logical, unsharded tensors of a training job's state.
//
// A Parameter is one logical tensor of the model with its split rule and its homes in the pipeline.
// Each kind of state kept for it (the parameter itself, moments, ...) is a StateTensor of the same
// shape.
//
//   Parameter qkv{.name = "layers.3.attn.qkv", .shape = {kv_heads, q_per_kv + 2, head_dim, hidden},
//                 .split = Split::Balanced(0), .homes = {Home::Layer(3)}};
#ifndef DYNATRAIN_VPS_CATALOG_H_
#define DYNATRAIN_VPS_CATALOG_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/vps/box.h"

namespace dynatrain::vps {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI64, kI32, kU8 };
ByteCount ElemBytes(DType dtype);
std::string_view DTypeName(DType dtype);  // "fp32", "bf16", ...
Result<DType> ParseDType(std::string_view name);

// What a state tensor is to its parameter. fp32 training has no master: the parameter is it.
enum class Kind : uint8_t { kParam, kGrad, kMaster, kExpAvg, kExpAvgSq };
std::string_view KindName(Kind kind);  // "param", "grad", "master", "exp_avg", "exp_avg_sq"
Result<Kind> ParseKind(std::string_view name);

// How an axis is cut over tensor-parallel positions. `axis` < 0: not cut, a replica everywhere.
struct Split {
  enum class Rule : uint8_t {
    kBalanced,
    kChunk,
    kExplicit,
    kPadded,  // axis 0: parts of ceil(extent / (block * parts)) * block; what lies past the extent
              // is padding of the buffers (Megatron's vocabulary)
    // Up to `extent` positions: balanced. More (a multiple of it): the positions of one index share
    // it; the next axis is cut over them, but its last `shared` entries are a replica at each (key
    // and value of a group of query heads).
    kGroups,
    kRows  // axis 0: Parameter::row_axes leading axes as one, balanced: opaque rows, cut anywhere
  };
  int axis = -1;
  Rule rule = Rule::kBalanced;
  std::vector<int64_t> sizes;  // kExplicit: one extent per part
  // A cut must fall on a multiple of `block` (1 = anywhere): cutting inside is refused by name.
  int64_t block = 1;
  int64_t shared = 0;  // kGroups

  static Split None() { return {}; }
  static Split Balanced(int axis, int64_t block = 1) { return {axis, Rule::kBalanced, {}, block}; }
  static Split Chunk(int axis, int64_t block = 1) { return {axis, Rule::kChunk, {}, block}; }
  static Split Explicit(int axis, std::vector<int64_t> sizes) {
    return {axis, Rule::kExplicit, std::move(sizes), 1};
  }
  static Split Padded(int64_t block) { return {0, Rule::kPadded, {}, block}; }
  static Split Groups(int axis, int64_t shared) { return {axis, Rule::kGroups, {}, 1, shared}; }
  static Split Rows() { return {0, Rule::kRows, {}, 1}; }
  friend bool operator==(const Split&, const Split&) = default;
};

// Whose experts a parameter holds. It then belongs to the experts' grid: cut over ep by expert,
// over etp by its Split.
struct Experts {
  int axis = -1;      // a stack [.., expert, ..]: the axis; cut balanced over ep
  int32_t index = 0;  // one parameter per expert: its number
  int32_t count = 0;  // one parameter per expert: how many there are; 0 for a stack
  static Experts Stack(int axis) { return {axis, 0, 0}; }
  static Experts One(int32_t index, int32_t count) { return {-1, index, count}; }
  friend bool operator==(const Experts&, const Experts&) = default;
};

// In local tensors and buffers, entries [0, sizes[0]) of the axis come first, then the next
// sizes[1],
// ...: plain [Q | K | V] of a logical [groups, q + k + v, ..].
struct StoredParts {
  int axis = 0;
  std::vector<int64_t> sizes;
  friend bool operator==(const StoredParts&, const StoredParts&) = default;
};

std::string_view SplitRuleName(Split::Rule rule);  // "balanced", "chunk", "explicit" ...

// [begin, end) of part `part` of `parts` of an axis of `extent` (balanced: the first extent mod
// parts parts get one more; chunk: parts of ceil(extent / parts), the last ones short or empty). In
// units of elements. kGroups and kRows as balanced.
struct AxisRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const AxisRange&, const AxisRange&) = default;
};
AxisRange SplitAxis(const Split& split, int64_t extent, int64_t parts, int64_t part);

// The place of a parameter in the pipeline. Stages are built from homes in the order embedding,
// layers, head.
struct Home {
  enum class Place : uint8_t { kEmbedding, kLayer, kHead };
  Place place = Place::kLayer;
  int32_t layer = 0;  // global layer index; 0 unless kLayer
  static Home Embedding() { return {Place::kEmbedding, 0}; }
  static Home Layer(int32_t layer) { return {Place::kLayer, layer}; }
  static Home Head() { return {Place::kHead, 0}; }
  friend bool operator==(const Home&, const Home&) = default;
  friend auto operator<=>(const Home&, const Home&) = default;
};

// What the elements of a state tensor are to each other and to their copies on other ranks.
enum class Content : uint8_t {
  kElements,     // each stands for itself, and all its holders have the same bits
  kPartialSums,  // holders have summands of it, as gradients before they are reduced: no replicas.
                 // Maps in which an element has two holders are refused
  kWhole         // means something together only: scales of a shard, factored moments, packed
                 // formats. Maps that cut it are refused; whole, it moves as anything else
};

struct KindSpec {
  Kind kind;
  DType dtype;
  Content content = Content::kElements;
  friend bool operator==(const KindSpec&, const KindSpec&) = default;
};

struct Parameter {
  std::string name;
  Shape shape;
  Split split = {};
  std::vector<Home> homes =
      {};  // more than one: tied; copies on different stages must agree bitwise
  // The state that exists for it, ordered by Kind; a parameter may have no moments.
  std::vector<KindSpec> kinds = {};
  bool trainable =
      true;  // only trainable parameters take part in flat gradient and optimizer buffers
  bool weight_decay = true;  // belongs to the optimizer's decay group
  std::optional<Experts> experts = std::nullopt;
  std::optional<StoredParts> stored = std::nullopt;  // none: row-major
  // The leading axes that a framework sees as dimension 0, for kRows and for BufferRule::kDim0.
  int row_axes = 1;
};

using ParameterId = int32_t;  // index in StateCatalog::parameters()
using TensorId = int32_t;     // index in StateCatalog::tensors()

struct StateTensor {
  TensorId id;
  ParameterId parameter;
  Kind kind;
  DType dtype;
  Content content = Content::kElements;
};

// The kinds of fp32 training with Adam: param, exp_avg, exp_avg_sq in fp32 (12 bytes per element).
std::vector<KindSpec> Fp32AdamKinds();
// bf16 parameters with fp32 master, exp_avg and exp_avg_sq (14 bytes per element).
std::vector<KindSpec> Bf16AdamKinds();

// An append-only list; ids are positions, equal on every rank because every rank registers in the
// same order. Immutable once shared; then any thread may read.
class StateCatalog {
 public:
  // Refuses duplicate or empty names, no homes, no kinds or a duplicate kind, negative extents,
  // more than kMaxDims axes, a split, expert or stored axis outside the shape, sizes that do not
  // add up, rules that do not fit each other, element counts and a state in bytes beyond 2^62,
  // blocks beyond 2^40 and layers beyond 2^24.
  Status Add(Parameter parameter);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<StateTensor>& tensors() const { return tensors_; }
  const Parameter& parameter_of(TensorId id) const {
    return parameters_[static_cast<size_t>(tensors_[static_cast<size_t>(id)].parameter)];
  }
  const StateTensor& tensor(TensorId id) const { return tensors_[static_cast<size_t>(id)]; }
  const Shape& shape_of(TensorId id) const { return parameter_of(id).shape; }
  std::string NameOf(TensorId id) const;  // "layers.3.attn.qkv/exp_avg"
  std::optional<TensorId> Find(ParameterId parameter, Kind kind) const;
  std::optional<ParameterId> FindParameter(std::string_view name) const;
  int num_layers() const { return num_layers_; }          // 1 + the largest layer index of any home
  ByteCount total_bytes() const { return total_bytes_; }  // of the whole unsharded state
  // Equal catalogs, and only those, have equal fingerprints.
  uint64_t Fingerprint() const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<StateTensor> tensors_;
  std::vector<TensorId> first_tensor_;  // by parameter
  std::map<std::string, ParameterId, std::less<>> by_name_;
  int num_layers_ = 0;
  ByteCount total_bytes_ = 0;
};

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_CATALOG_H_
