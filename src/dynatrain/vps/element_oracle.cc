#include "dynatrain/vps/element_oracle.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

namespace dynatrain::vps::testing {

namespace {

// Advances a row-major index; false after the last one.
bool NextIndex(const Shape& shape, Coords* index) {
  for (int axis = shape.dims() - 1; axis >= 0; --axis) {
    if (++(*index)[axis] < shape[axis]) return true;
    (*index)[axis] = 0;
  }
  return false;
}

// Deals `count` things to `parts` in order: the first ones get one more.
std::vector<int> Dealt(int64_t count, int64_t parts) {
  std::vector<int64_t> sizes(static_cast<size_t>(parts), 0);
  for (int64_t i = 0; i < count; ++i) ++sizes[static_cast<size_t>(i % parts)];
  std::vector<int> owners;
  for (int part = 0; part < parts; ++part) {
    owners.insert(owners.end(), static_cast<size_t>(sizes[static_cast<size_t>(part)]), part);
  }
  return owners;
}

// Indices per part of kChunk and kPadded.
int64_t ChunkOf(const Split& split, int64_t extent, int64_t parts) {
  const int64_t unit = split.rule == Split::Rule::kPadded ? split.block : 1;
  int64_t chunk = 0;
  while (chunk * parts < extent) chunk += unit;
  return chunk;
}

// The part that each index of an axis belongs to.
std::vector<int> OwnersOfAxis(const Split& split, int64_t extent, int64_t parts) {
  std::vector<int> owners;
  if (split.rule == Split::Rule::kExplicit) {
    for (size_t part = 0; part < split.sizes.size(); ++part) {
      owners.insert(owners.end(), static_cast<size_t>(split.sizes[part]), static_cast<int>(part));
    }
  } else if (split.rule == Split::Rule::kChunk || split.rule == Split::Rule::kPadded) {
    const int64_t chunk = ChunkOf(split, extent, parts);
    for (int64_t i = 0; i < extent; ++i) owners.push_back(static_cast<int>(i / chunk));
  } else {
    return Dealt(extent, parts);
  }
  return owners;
}

// Coordinates of a position in one of the grids: stage, part of the split, expert group.
struct Coordinates {
  int stage = 0, split = 0, expert = 0;
  friend auto operator<=>(const Coordinates&, const Coordinates&) = default;
};

std::vector<std::string> Tokens(const std::string& text) {
  std::vector<std::string> tokens(1);
  for (const char c : text) {
    if (c == '-') {
      tokens.emplace_back();
    } else {
      tokens.back() += c;
    }
  }
  return tokens;
}

// The axes of a grid from the smallest stride up, with their degrees.
std::vector<std::pair<std::string, int>> AxesOf(const Layout& l, bool experts) {
  std::vector<std::pair<std::string, int>> axes;
  const bool names_cp = l.order.find("cp") != std::string::npos;
  const int edp = l.tp * l.cp * l.dp / l.ep / l.etp;
  if (experts && !l.eorder.empty()) {
    const std::map<std::string, int> degrees = {
        {"etp", l.etp}, {"ep", l.ep}, {"edp", edp}, {"pp", l.pp}};
    for (const std::string& token : Tokens(l.eorder)) axes.emplace_back(token, degrees.at(token));
    return axes;
  }
  for (const std::string& token : Tokens(l.order)) {
    if (token == "pp") axes.emplace_back("pp", l.pp);
    if (experts) {
      if (token == "tp") axes.insert(axes.end(), {{"etp", l.etp}, {"ep", l.ep}});
      if (token == "dp") axes.emplace_back("edp", edp);
    } else {
      if (token == "tp") axes.emplace_back("tp", l.tp);
      if (token == "cp" || (token == "tp" && !names_cp)) axes.emplace_back("cp", l.cp);
      if (token == "dp") axes.emplace_back("dp", l.dp);
    }
  }
  return axes;
}

Coordinates Decode(const Layout& layout, bool experts, int position) {
  Coordinates c;
  if (experts && layout.ep == 1 && layout.etp == 1 && layout.eorder.empty()) {
    c.stage = Decode(layout, false, position).stage;
    return c;
  }
  for (const auto& [axis, degree] : AxesOf(layout, experts)) {
    if (axis == "pp") c.stage = position % degree;
    if (axis == "tp" || axis == "etp") c.split = position % degree;
    if (axis == "ep") c.expert = position % degree;
    position /= degree;
  }
  return c;
}

bool InExpertGrid(const Layout& layout, const Parameter& p) {
  return p.experts && (layout.ep > 1 || layout.etp != layout.tp);
}

// The expert group that each expert belongs to, where the parameter has experts of its own.
bool OwnsExpert(const Layout& layout, const Parameter& p, int64_t expert, const Coordinates& c) {
  if (!InExpertGrid(layout, p)) return true;
  const int64_t count = p.experts->axis >= 0 ? p.shape[p.experts->axis] : p.experts->count;
  return Dealt(count, layout.ep)[static_cast<size_t>(expert)] == c.expert;
}

// Row-major index and rank in the local order of one element; `padding` elements follow all.
struct LocalElement {
  std::vector<int64_t> order;
  int64_t index;
  friend auto operator<=>(const LocalElement&, const LocalElement&) = default;
};

// Whether a position has the element at `at`; sets what its place in local order depends on.
bool Owns(const Layout& layout, const Parameter& p, const Coords& at, const Coordinates& c,
          std::vector<int64_t>* order) {
  const int degree = InExpertGrid(layout, p) ? layout.etp : layout.tp;
  const Split& split = p.split;
  if (p.experts) {
    const int64_t expert = p.experts->axis >= 0 ? at[p.experts->axis] : p.experts->index;
    if (!OwnsExpert(layout, p, expert, c)) return false;
  }
  int64_t stored = 0;
  if (p.stored) {
    int64_t end = 0;
    for (const int64_t size : p.stored->sizes) {
      end += size;
      if (at[p.stored->axis] >= end) ++stored;
    }
  }
  *order = {stored, 0};
  if (split.axis < 0) return true;
  const int64_t extent = p.shape[split.axis];
  if (split.rule == Split::Rule::kRows) {
    int64_t row = 0;
    int64_t rows = 1;
    for (int axis = 0; axis < p.row_axes; ++axis) {
      row = row * p.shape[axis] + at[axis];
      rows *= p.shape[axis];
    }
    return Dealt(rows, degree)[static_cast<size_t>(row)] == c.split;
  }
  if (split.rule == Split::Rule::kGroups && degree > extent) {
    const auto per_group = static_cast<int>(degree / extent);
    if (at[split.axis] != c.split / per_group) return false;
    const int64_t own = p.shape[split.axis + 1] - split.shared;
    const int64_t entry = at[split.axis + 1];
    (*order)[1] = entry >= own ? 1 : 0;
    return entry >= own || Dealt(own, per_group)[static_cast<size_t>(entry)] == c.split % per_group;
  }
  return OwnersOfAxis(split, extent, degree)[static_cast<size_t>(at[split.axis])] == c.split;
}

// Row-major indices of the elements that a position has of a parameter, in local order; -1 is
// filler.
std::vector<int64_t> LocalElements(const Layout& layout, const Parameter& p, const Coordinates& c) {
  std::vector<LocalElement> local;
  int64_t others = 0;  // elements per index of axis 0
  if (ElemCount(p.shape) > 0) {
    Coords at = Coords::Filled(p.shape.dims(), 0);
    int64_t index = 0;
    do {
      std::vector<int64_t> order;
      if (Owns(layout, p, at, c, &order)) local.push_back({order, index});
      bool first = true;
      if (p.experts) {
        const int64_t expert = p.experts->axis >= 0 ? at[p.experts->axis] : p.experts->index;
        first = OwnsExpert(layout, p, expert, c);
      }
      if (first && p.shape.dims() > 0 && at[0] == 0) ++others;
      ++index;
    } while (NextIndex(p.shape, &at));
  }
  std::sort(local.begin(), local.end());
  std::vector<int64_t> indices;
  for (const LocalElement& element : local) indices.push_back(element.index);
  if (p.split.axis == 0 && p.split.rule == Split::Rule::kPadded) {
    const int degree = InExpertGrid(layout, p) ? layout.etp : layout.tp;
    indices.resize(static_cast<size_t>(ChunkOf(p.split, p.shape[0], degree) * others), -1);
  }
  return indices;
}

// The homes of a stage by chunk, from front to back.
std::vector<std::pair<int, Home>> HomesOfStage(const Layout& layout, int stage, int num_layers) {
  const int chunks = layout.pp * layout.vpp;
  std::vector<int> chunk_of_layer;
  if (layout.split.empty()) {
    chunk_of_layer = Dealt(num_layers, chunks);
  } else {
    for (size_t chunk = 0; chunk < layout.split.size(); ++chunk) {
      chunk_of_layer.insert(chunk_of_layer.end(), static_cast<size_t>(layout.split[chunk]),
                            static_cast<int>(chunk));
    }
  }
  std::vector<std::pair<int, Home>> homes;
  for (int chunk = stage; chunk < chunks; chunk += layout.pp) {
    if (chunk == 0) homes.emplace_back(chunk, Home::Embedding());
    for (int layer = 0; layer < num_layers; ++layer) {
      if (chunk_of_layer[static_cast<size_t>(layer)] == chunk) {
        homes.emplace_back(chunk, Home::Layer(layer));
      }
    }
    if (chunk == chunks - 1) homes.emplace_back(chunk, Home::Head());
  }
  return homes;
}

std::string ClassOf(const Parameter& p) {
  std::string name = p.trainable ? "trainable" : "frozen";
  for (const KindSpec& spec : p.kinds) {
    if (spec.kind == Kind::kParam) name += DTypeName(spec.dtype);
  }
  return name;
}

struct Placed {
  ParameterId parameter;
  int chunk;
  Home home;
};

// Whether a position lists the parameter at all: an expert group without its experts does not.
bool Lists(const Layout& layout, const Parameter& p, const Coordinates& c) {
  if (!InExpertGrid(layout, p)) return true;
  if (layout.ep == 1) return true;
  if (ElemCount(p.shape) == 0) return false;
  if (p.experts->axis < 0) return OwnsExpert(layout, p, p.experts->index, c);
  for (int64_t expert = 0; expert < p.shape[p.experts->axis]; ++expert) {
    if (OwnsExpert(layout, p, expert, c)) return true;
  }
  return false;
}

// The parameters of a position in a grid by class of buffers: trainable classes first, each as the
// catalog first has it.
std::vector<std::vector<Placed>> PlacedAt(const StateCatalog& catalog, const Layout& layout,
                                          bool experts, const Coordinates& c) {
  std::vector<std::string> classes;
  for (const bool trainable : {true, false}) {
    for (const Parameter& p : catalog.parameters()) {
      if (p.trainable == trainable && InExpertGrid(layout, p) == experts &&
          std::count(classes.begin(), classes.end(), ClassOf(p)) == 0) {
        classes.push_back(ClassOf(p));
      }
    }
  }
  std::vector<std::vector<Placed>> placed(classes.size());
  std::set<ParameterId> seen;
  for (const auto& [chunk, home] : HomesOfStage(layout, c.stage, catalog.num_layers())) {
    for (size_t id = 0; id < catalog.parameters().size(); ++id) {
      const Parameter& p = catalog.parameters()[id];
      if (InExpertGrid(layout, p) != experts || !Lists(layout, p, c)) continue;
      if (std::count(p.homes.begin(), p.homes.end(), home) == 0) continue;
      if (!seen.insert(static_cast<ParameterId>(id)).second) continue;
      const auto k = std::find(classes.begin(), classes.end(), ClassOf(p)) - classes.begin();
      placed[static_cast<size_t>(k)].push_back({static_cast<ParameterId>(id), chunk, home});
    }
  }
  if (layout.buffer.order == BufferRule::Order::kReverse) {
    for (std::vector<Placed>& list : placed) std::reverse(list.begin(), list.end());
  }
  return placed;
}

struct FlatElement {
  ParameterId parameter = -1;
  int64_t index = 0;
};

struct FlatBucket {
  std::vector<ParameterId> parameters;
  std::vector<FlatElement> elements;
};

class BucketSimulation {
 public:
  BucketSimulation(const StateCatalog& catalog, const Layout& layout, bool experts)
      : catalog_(catalog), layout_(layout), rule_(layout.buffer) {
    slices_ = experts ? layout.tp * layout.cp * layout.dp / layout.ep / layout.etp
                      : layout.dp * layout.cp;
    megatron_ = rule_.cut == BufferRule::Cut::kMegatron;
    cut_ = layout.zero > 0;
    experts_ = experts;
  }

  std::vector<FlatBucket> Run(const Coordinates& c) {
    buckets_.clear();
    for (const std::vector<Placed>& list : PlacedAt(catalog_, layout_, experts_, c)) {
      for (size_t i = 0; i < list.size(); ++i) {
        if (i == 0 || !Joins(list[i - 1], list[i])) buckets_.emplace_back();
        Add(list[i], LocalElements(layout_, ParameterOf(list[i]), c));
      }
    }
    for (FlatBucket& bucket : buckets_) Pad(&bucket);
    return buckets_;
  }

 private:
  const Parameter& ParameterOf(const Placed& placed) const {
    return catalog_.parameters()[static_cast<size_t>(placed.parameter)];
  }
  bool Tied(const Placed& placed) const {
    return ParameterOf(placed).homes.size() > 1 && layout_.pp > 1;
  }
  bool Joins(const Placed& last, const Placed& next) const {
    if (last.chunk != next.chunk) return false;
    const auto length = static_cast<int64_t>(buckets_.back().elements.size());
    switch (rule_.cut) {
      case BufferRule::Cut::kContiguous:
        return true;
      case BufferRule::Cut::kBucketed:
        return last.home == next.home;
      case BufferRule::Cut::kBucketedElems:
        return length < rule_.bucket_elems;
      case BufferRule::Cut::kMegatron:
        if (Tied(last) || Tied(next)) return false;
        return next.chunk > 0 ||
               length < (rule_.bucket_elems > 0 ? rule_.bucket_elems : 40'000'000);
      default:
        return false;
    }
  }
  void Add(const Placed& placed, const std::vector<int64_t>& local) {
    FlatBucket& bucket = buckets_.back();
    bucket.parameters.push_back(placed.parameter);
    const int64_t start = megatron_ ? (cut_ ? 64 : 1) : rule_.start_alignment;
    while (!local.empty() && static_cast<int64_t>(bucket.elements.size()) % start != 0) {
      bucket.elements.emplace_back();
    }
    for (const int64_t index : local) {
      bucket.elements.push_back(index < 0 ? FlatElement{} : FlatElement{placed.parameter, index});
    }
  }
  void Pad(FlatBucket* bucket) const {
    if (bucket->elements.empty()) return;
    const auto fits = [&] {
      const auto elems = static_cast<int64_t>(bucket->elements.size());
      if (elems % rule_.end_alignment != 0) return false;
      if (!cut_) return true;
      if (megatron_) return elems % 128 == 0 && elems % slices_ == 0;
      return elems % (rule_.end_alignment_per_dp * slices_) == 0 &&
             (rule_.cut != BufferRule::Cut::kDim0 || elems % (slices_ * RowElems(*bucket)) == 0);
    };
    while (!fits()) bucket->elements.emplace_back();
  }
  // Elements per row of the only parameter of a dim0 bucket: its local elements, counted, that
  // share the leading axes with the first of them.
  int64_t RowElems(const FlatBucket& bucket) const {
    const Parameter& p = catalog_.parameters()[static_cast<size_t>(bucket.parameters[0])];
    int64_t inner = 1;
    for (int axis = p.row_axes; axis < p.shape.dims(); ++axis) inner *= p.shape[axis];
    if (bucket.elements[0].parameter < 0) return inner;  // filler of a padded split alone
    const int64_t row = bucket.elements[0].index / inner;
    return std::count_if(bucket.elements.begin(), bucket.elements.end(), [&](const FlatElement& e) {
      return e.parameter >= 0 && e.index / inner == row;
    });
  }

  const StateCatalog& catalog_;
  const Layout& layout_;
  const BufferRule& rule_;
  int64_t slices_ = 1;
  bool megatron_ = false;
  bool cut_ = false;
  bool experts_ = false;
  std::vector<FlatBucket> buckets_;
};

bool IsCut(const Layout& layout, Kind kind) {
  if (kind == Kind::kParam) return layout.zero == 3;
  if (kind == Kind::kGrad) return layout.zero >= 2;
  return layout.zero >= 1;
}

// How many positions before this one are at the same place of the grid.
size_t SliceOf(const Layout& layout, bool experts, int position) {
  const Coordinates c = Decode(layout, experts, position);
  size_t slice = 0;
  for (int other = 0; other < position; ++other) {
    if (Decode(layout, experts, other) == c) ++slice;
  }
  return slice;
}

}  // namespace

ElementOracle::ElementOracle(const StateCatalog& catalog, const Layout& layout) {
  for (int position = 0; position < layout.world_size(); ++position) {
    const RankId rank =
        layout.ranks.empty() ? position : layout.ranks[static_cast<size_t>(position)];
    buffers_[rank];
    for (const bool experts : {false, true}) {
      const Coordinates c = Decode(layout, experts, position);
      size_t slices = 0;
      for (int other = 0; other < layout.world_size(); ++other) {
        if (Decode(layout, experts, other) == c) ++slices;
      }
      const size_t slice = SliceOf(layout, experts, position);
      for (const FlatBucket& bucket : BucketSimulation(catalog, layout, experts).Run(c)) {
        AddBuffers(catalog, rank, bucket.parameters,
                   [&](Kind kind, size_t i) -> std::optional<Element> {
                     const size_t size = bucket.elements.size();
                     if (i >= size) return std::nullopt;
                     if (IsCut(layout, kind)) {
                       i += slice * (size / slices);
                       if (i >= (slice + 1) * (size / slices)) return std::nullopt;
                     }
                     const FlatElement& flat = bucket.elements[i];
                     const std::optional<TensorId> tensor =
                         flat.parameter < 0 ? std::nullopt : catalog.Find(flat.parameter, kind);
                     return tensor ? Element{*tensor, flat.index} : Element{};
                   });
      }
    }
  }
  for (auto& [element, ranks] : holders_) std::sort(ranks.begin(), ranks.end());
}

void ElementOracle::AddBuffers(
    const StateCatalog& catalog, RankId rank, const std::vector<ParameterId>& parameters,
    const std::function<std::optional<Element>(Kind, size_t)>& element_at) {
  for (const Kind kind :
       {Kind::kParam, Kind::kGrad, Kind::kMaster, Kind::kExpAvg, Kind::kExpAvgSq}) {
    bool exists = false;
    for (const ParameterId p : parameters) exists = exists || catalog.Find(p, kind);
    if (!exists) continue;
    OracleBuffer buffer{kind, {}};
    for (size_t i = 0;; ++i) {
      const std::optional<Element> element = element_at(kind, i);
      if (!element) break;
      buffer.elements.push_back(*element);
      if (element->tensor >= 0) holders_[*element].push_back(rank);
    }
    buffers_[rank].push_back(std::move(buffer));
  }
}

std::vector<Element> ElementsOf(const StateCatalog& catalog, TensorId tensor, const Box& box) {
  std::vector<Element> elements;
  if (box.empty()) return elements;
  const Coords strides = RowMajorStrides(catalog.shape_of(tensor));
  Coords at = Coords::Filled(box.dims(), 0);
  do {
    int64_t index = 0;
    for (int axis = 0; axis < box.dims(); ++axis)
      index += (box.lo()[axis] + at[axis]) * strides[axis];
    elements.push_back({tensor, index});
  } while (NextIndex(box.shape(), &at));
  return elements;
}

namespace {

// Calls visit(element, offset in the buffer) for every element of a shard.
template <class Visit>
void VisitShard(const StateCatalog& catalog, const Shard& shard, const Visit& visit) {
  const std::vector<Element> elements = ElementsOf(catalog, shard.tensor, shard.box);
  Coords at = Coords::Filled(shard.box.dims(), 0);
  for (const Element& element : elements) {
    int64_t offset = shard.offset;
    for (int axis = 0; axis < at.dims(); ++axis) offset += at[axis] * shard.strides[axis];
    visit(element, offset);
    NextIndex(shard.box.shape(), &at);
  }
}

}  // namespace

std::vector<OracleBuffer> PaintedBuffers(const ShardMap& map, RankId rank) {
  std::vector<OracleBuffer> painted;
  for (const Buffer& buffer : map.BuffersOf(rank)) {
    painted.push_back({buffer.kind, std::vector<Element>(static_cast<size_t>(buffer.elems))});
  }
  for (const Shard& shard : map.ShardsOf(rank)) {
    EXPECT_FALSE(shard.box.empty());
    std::vector<Element>& elements = painted.at(static_cast<size_t>(shard.buffer)).elements;
    VisitShard(map.catalog(), shard, [&](const Element& element, int64_t offset) {
      Element& place = elements.at(static_cast<size_t>(offset));
      EXPECT_EQ(place, Element{}) << "two shards meet at offset " << offset;
      place = element;
    });
  }
  return painted;
}

uint64_t DistinctValue(const Element& element) {
  return static_cast<uint64_t>(element.tensor + 1) << 12 | static_cast<uint64_t>(element.index);
}

State MakeState(const ShardMap& map, const ValueFunction& value) {
  State state;
  for (const RankId rank : map.Ranks()) {
    const std::vector<Buffer> buffers = map.BuffersOf(rank);
    std::vector<std::vector<std::byte>>& bytes = state[rank];
    for (const Buffer& buffer : buffers) bytes.emplace_back(static_cast<size_t>(buffer.bytes()));
    for (const Shard& shard : map.ShardsOf(rank)) {
      const auto b = static_cast<size_t>(shard.buffer);
      const ByteCount width = ElemBytes(buffers.at(b).dtype);
      VisitShard(map.catalog(), shard, [&](const Element& element, int64_t offset) {
        const uint64_t bits = value(element);
        std::memcpy(bytes.at(b).data() + offset * width, &bits, static_cast<size_t>(width));
      });
    }
  }
  return state;
}

State Reshard(const ShardMap& from, const State& state, const ShardMap& to) {
  std::map<Element, uint64_t> values;
  for (const RankId rank : to.Ranks()) {
    for (const Shard& shard : to.ShardsOf(rank)) {
      from.VisitHolders(shard.tensor, shard.box, [&](const Box& part, const HolderSet& holders) {
        const RankId source = holders.At(0);
        for (const Shard& held : from.ShardsOf(source)) {
          if (held.tensor != shard.tensor || !held.box.Contains(part)) continue;
          const ByteCount width = ElemBytes(from.catalog().tensor(held.tensor).dtype);
          VisitShard(from.catalog(), held, [&](const Element& element, int64_t offset) {
            uint64_t bits = 0;
            const std::vector<std::byte>& bytes =
                state.at(source).at(static_cast<size_t>(held.buffer));
            std::memcpy(&bits, bytes.data() + offset * width, static_cast<size_t>(width));
            values.emplace(element, bits);
          });
        }
      });
    }
  }
  return MakeState(to, [&](const Element& element) { return values.at(element); });
}

}  // namespace dynatrain::vps::testing
