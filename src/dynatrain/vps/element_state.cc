#include "dynatrain/vps/element_state.h"

#include <cstring>

#include "dynatrain/vps/shard_elements.h"

namespace dynatrain::vps::testing {

std::vector<Element> ElementsOf(const StateCatalog& catalog, TensorId tensor, const Box& box) {
  std::vector<Element> elements;
  const Shard dense{tensor, box, 0, 0, RowMajorStrides(box.shape())};
  ForEachElement(catalog.shape_of(tensor), dense,
                 [&](int64_t index, int64_t) { elements.push_back({tensor, index}); });
  return elements;
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
      ForEachElement(map.catalog().shape_of(shard.tensor), shard, [&](int64_t index, int64_t at) {
        const uint64_t bits = value({shard.tensor, index});
        std::memcpy(bytes.at(b).data() + at * width, &bits, static_cast<size_t>(width));
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
          const std::vector<std::byte>& bytes =
              state.at(source).at(static_cast<size_t>(held.buffer));
          ForEachElement(
              from.catalog().shape_of(held.tensor), held, [&](int64_t index, int64_t at) {
                uint64_t bits = 0;
                std::memcpy(&bits, bytes.data() + at * width, static_cast<size_t>(width));
                values.emplace(Element{held.tensor, index}, bits);
              });
        }
      });
    }
  }
  return MakeState(to, [&](const Element& element) { return values.at(element); });
}

}  // namespace dynatrain::vps::testing
