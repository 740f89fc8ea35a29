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

// The part that each index of an axis belongs to.
std::vector<int> OwnersOfAxis(const Split& split, int64_t extent, int parts) {
  std::vector<int64_t> sizes(static_cast<size_t>(parts), 0);
  if (split.rule == Split::Rule::kExplicit) {
    sizes = split.sizes;
  } else if (split.rule == Split::Rule::kBalanced) {
    for (int64_t i = 0; i < extent; ++i) ++sizes[static_cast<size_t>(i % parts)];
  } else {
    int64_t chunk = 0;
    while (chunk * parts < extent) ++chunk;
    for (int64_t i = 0; i < extent; ++i) ++sizes[static_cast<size_t>(i / chunk)];
  }
  std::vector<int> owners;
  for (int part = 0; part < parts; ++part) {
    owners.insert(owners.end(), static_cast<size_t>(sizes[static_cast<size_t>(part)]), part);
  }
  return owners;
}

// Row-major indices of the elements that a tensor-parallel position has of a parameter.
std::vector<int64_t> LocalElements(const Parameter& p, int tp_degree, int tp) {
  std::vector<int64_t> local;
  if (ElemCount(p.shape) == 0) return local;
  std::vector<int> owners;
  if (p.split.axis >= 0) owners = OwnersOfAxis(p.split, p.shape[p.split.axis], tp_degree);
  Coords at = Coords::Filled(p.shape.dims(), 0);
  int64_t index = 0;
  do {
    if (p.split.axis < 0 || owners[static_cast<size_t>(at[p.split.axis])] == tp)
      local.push_back(index);
    ++index;
  } while (NextIndex(p.shape, &at));
  return local;
}

struct Coordinates {
  int tp = 0, dp = 0, pp = 0;
};

Coordinates Decode(const Layout& layout, int position) {
  Coordinates c;
  std::string order = layout.order + "-";
  for (size_t at = 0; at < order.size(); at += 3) {
    const std::string axis = order.substr(at, 2);
    int& coordinate = axis == "tp" ? c.tp : axis == "dp" ? c.dp : c.pp;
    const int degree = axis == "tp" ? layout.tp : axis == "dp" ? layout.dp : layout.pp;
    coordinate = position % degree;
    position /= degree;
  }
  return c;
}

// The homes of a stage, from front to back.
std::vector<Home> HomesOfStage(const Layout& layout, int stage, int num_layers) {
  std::vector<int32_t> counts = layout.split;
  if (counts.empty()) {
    counts.assign(static_cast<size_t>(layout.pp), 0);
    for (int layer = 0; layer < num_layers; ++layer)
      ++counts[static_cast<size_t>(layer % layout.pp)];
  }
  std::vector<Home> homes;
  if (stage == 0) homes.push_back(Home::Embedding());
  int layer = 0;
  for (int s = 0; s < stage; ++s) layer += counts[static_cast<size_t>(s)];
  for (int i = 0; i < counts[static_cast<size_t>(stage)]; ++i)
    homes.push_back(Home::Layer(layer++));
  if (stage == layout.pp - 1) homes.push_back(Home::Head());
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
  Home home;
};

// The parameters of a stage by class of buffers: trainable classes first, each as the catalog first
// has it.
std::vector<std::vector<Placed>> PlacedOfStage(const StateCatalog& catalog, const Layout& layout,
                                               int stage) {
  std::vector<std::string> classes;
  for (const bool trainable : {true, false}) {
    for (const Parameter& p : catalog.parameters()) {
      if (p.trainable == trainable && std::count(classes.begin(), classes.end(), ClassOf(p)) == 0) {
        classes.push_back(ClassOf(p));
      }
    }
  }
  std::vector<std::vector<Placed>> placed(classes.size());
  std::set<ParameterId> seen;
  for (const Home& home : HomesOfStage(layout, stage, catalog.num_layers())) {
    for (size_t id = 0; id < catalog.parameters().size(); ++id) {
      const Parameter& p = catalog.parameters()[id];
      if (std::count(p.homes.begin(), p.homes.end(), home) == 0) continue;
      if (!seen.insert(static_cast<ParameterId>(id)).second) continue;
      const auto c = static_cast<size_t>(std::find(classes.begin(), classes.end(), ClassOf(p)) -
                                         classes.begin());
      placed[c].push_back({static_cast<ParameterId>(id), home});
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

std::vector<FlatBucket> BucketsOfStage(const StateCatalog& catalog, const Layout& layout, int stage,
                                       int tp) {
  const BufferRule& rule = layout.buffer;
  std::vector<FlatBucket> buckets;
  for (const std::vector<Placed>& list : PlacedOfStage(catalog, layout, stage)) {
    for (size_t i = 0; i < list.size(); ++i) {
      const bool open =
          i > 0 && (rule.cut == BufferRule::Cut::kContiguous ||
                    (rule.cut == BufferRule::Cut::kBucketed && list[i].home == list[i - 1].home) ||
                    (rule.cut == BufferRule::Cut::kBucketedElems &&
                     static_cast<int64_t>(buckets.back().elements.size()) < rule.bucket_elems));
      if (!open) buckets.emplace_back();
      FlatBucket& bucket = buckets.back();
      const Parameter& p = catalog.parameters()[static_cast<size_t>(list[i].parameter)];
      const std::vector<int64_t> local = LocalElements(p, layout.tp, tp);
      bucket.parameters.push_back(list[i].parameter);
      while (!local.empty() &&
             static_cast<int64_t>(bucket.elements.size()) % rule.start_alignment != 0) {
        bucket.elements.emplace_back();
      }
      for (const int64_t index : local) bucket.elements.push_back({list[i].parameter, index});
    }
  }
  for (FlatBucket& bucket : buckets) {
    const auto fits = [&] {
      const auto elems = static_cast<int64_t>(bucket.elements.size());
      return elems % rule.end_alignment == 0 &&
             (layout.zero == 0 || elems % (rule.end_alignment_per_dp * layout.dp) == 0);
    };
    while (!fits()) bucket.elements.emplace_back();
  }
  return buckets;
}

bool IsCut(const Layout& layout, Kind kind) {
  if (kind == Kind::kParam || kind == Kind::kGrad) return false;
  return layout.zero >= 1;
}

}  // namespace

ElementOracle::ElementOracle(const StateCatalog& catalog, const Layout& layout) {
  for (int position = 0; position < layout.world_size(); ++position) {
    const RankId rank =
        layout.ranks.empty() ? position : layout.ranks[static_cast<size_t>(position)];
    const Coordinates c = Decode(layout, position);
    std::vector<OracleBuffer>& buffers = buffers_[rank];
    for (const FlatBucket& bucket : BucketsOfStage(catalog, layout, c.pp, c.tp)) {
      for (const Kind kind :
           {Kind::kParam, Kind::kGrad, Kind::kMaster, Kind::kExpAvg, Kind::kExpAvgSq}) {
        bool exists = false;
        for (const ParameterId p : bucket.parameters) exists = exists || catalog.Find(p, kind);
        if (!exists) continue;
        OracleBuffer buffer{kind, {}};
        const size_t size = bucket.elements.size();
        const auto degree = static_cast<size_t>(layout.dp);
        const auto dp = static_cast<size_t>(c.dp);
        for (size_t i = 0; i < size; ++i) {
          if (IsCut(layout, kind) && i / (size / degree) != dp) continue;
          const FlatElement& flat = bucket.elements[i];
          const std::optional<TensorId> tensor =
              flat.parameter < 0 ? std::nullopt : catalog.Find(flat.parameter, kind);
          buffer.elements.push_back(tensor ? Element{*tensor, flat.index} : Element{});
          if (tensor) holders_[buffer.elements.back()].push_back(rank);
        }
        buffers.push_back(std::move(buffer));
      }
    }
  }
  for (auto& [element, ranks] : holders_) std::sort(ranks.begin(), ranks.end());
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
