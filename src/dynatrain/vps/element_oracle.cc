#include "dynatrain/vps/element_oracle.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "dynatrain/vps/oracle_grid.h"
#include "dynatrain/vps/shard_elements.h"

namespace dynatrain::vps::testing {

namespace {

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

std::vector<OracleBuffer> PaintedBuffers(const ShardMap& map, RankId rank) {
  std::vector<OracleBuffer> painted;
  for (const Buffer& buffer : map.BuffersOf(rank)) {
    painted.push_back({buffer.kind, std::vector<Element>(static_cast<size_t>(buffer.elems))});
  }
  for (const Shard& shard : map.ShardsOf(rank)) {
    EXPECT_FALSE(shard.box.empty());
    std::vector<Element>& elements = painted.at(static_cast<size_t>(shard.buffer)).elements;
    ForEachElement(map.catalog().shape_of(shard.tensor), shard, [&](int64_t index, int64_t at) {
      Element& place = elements.at(static_cast<size_t>(at));
      EXPECT_EQ(place, Element{}) << "two shards meet at offset " << at;
      place = {shard.tensor, index};
    });
  }
  return painted;
}

State OracleState(const LayoutShardMap& map, const ValueFunction& value) {
  const ElementOracle oracle(map.catalog(), map.layout());
  State state;
  for (const RankId rank : map.Ranks()) {
    const std::vector<Buffer> buffers = map.BuffersOf(rank);
    EXPECT_EQ(buffers.size(), oracle.BuffersOf(rank).size());
    std::vector<std::vector<std::byte>>& all = state[rank];
    for (size_t b = 0; b < buffers.size(); ++b) {
      const auto width = static_cast<size_t>(ElemBytes(buffers[b].dtype));
      const std::vector<Element>& elements = oracle.BuffersOf(rank).at(b).elements;
      std::vector<std::byte>& bytes = all.emplace_back(elements.size() * width);
      for (size_t i = 0; i < elements.size(); ++i) {
        if (elements[i].tensor < 0) continue;
        const uint64_t bits = value(elements[i]);
        std::memcpy(bytes.data() + i * width, &bits, width);
      }
    }
  }
  return state;
}

}  // namespace dynatrain::vps::testing
