#include "dynatrain/vps/digest.h"

#include <algorithm>
#include <cstring>

#include "dynatrain/base/hash.h"

namespace dynatrain::vps {

namespace {

__extension__ using Uint128 = unsigned __int128;

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

uint64_t Reduce(uint64_t value) {  // mod kPrime
  value = (value & kPrime) + (value >> 61);
  return value >= kPrime ? value - kPrime : value;
}

uint64_t AddMod(uint64_t a, uint64_t b) { return Reduce(a + b); }
uint64_t SubMod(uint64_t a, uint64_t b) { return Reduce(a + kPrime - b); }

uint64_t MulMod(uint64_t a, uint64_t b) {
  const Uint128 product = static_cast<Uint128>(a) * b;
  return AddMod(static_cast<uint64_t>(product) & kPrime, static_cast<uint64_t>(product >> 61));
}

// The hash function of one state tensor.
struct ElemHash {
  uint64_t bits_key;
  uint64_t index_key;

  ElemHash(TensorId tensor, Kind kind, DType dtype) {
    const uint64_t seed = Hasher().Add("digest").Add(tensor).Add(kind).Add(dtype).hash();
    bits_key = Mix64(seed);
    index_key = Mix64(seed + 1);
  }
  // Folded 128-bit product (as in wyhash), then one more multiplication to spread it over all 64
  // bits.
  uint64_t operator()(uint64_t index, uint64_t bits) const {
    const Uint128 product =
        static_cast<Uint128>(bits ^ bits_key) * ((index * 0x9e3779b97f4a7c15ULL + index_key) | 1);
    const uint64_t folded = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    return (folded ^ (folded >> 32)) * 0xd6e8feb86659fd93ULL;
  }
};

// Sum over `count` elements of logical indices index, index + 1, ... that lie `stride` elements
// apart.
template <class Bits>
uint64_t SumOfRun(const ElemHash& hash, const std::byte* data, int64_t count, int64_t stride,
                  int64_t index) {
  uint64_t sum = 0;
  const auto first = static_cast<uint64_t>(index);
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * stride * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    sum += hash(first + static_cast<uint64_t>(i), bits);
  }
  return sum;
}

uint64_t SumOfRun(const ElemHash& hash, ByteCount elem_bytes, const std::byte* data, int64_t count,
                  int64_t stride, int64_t index) {
  switch (elem_bytes) {
    case 1:
      return SumOfRun<uint8_t>(hash, data, count, stride, index);
    case 2:
      return SumOfRun<uint16_t>(hash, data, count, stride, index);
    case 4:
      return SumOfRun<uint32_t>(hash, data, count, stride, index);
    case 8:
      return SumOfRun<uint64_t>(hash, data, count, stride, index);
    default:
      DT_CHECK_MSG(false, "no dtype has such elements");
  }
}

// Where the elements of a box lie: element x at data + sum_a (x[a] - box.lo[a]) * strides[a]
// elements.
struct Region {
  Box box;
  const std::byte* data;
  Coords strides;
};

uint64_t SumOfBox(const ElemHash& hash, const Shape& shape, ByteCount elem_bytes,
                  const Region& region) {
  const Box& box = region.box;
  if (box.empty()) return 0;
  const Coords logical = RowMajorStrides(shape);
  // The axes from `run_axis` on are one run: consecutive in the logical order, `stride` apart in
  // memory.
  int run_axis = std::max(box.dims() - 1, 0);
  int64_t run = box.dims() == 0 ? 1 : box.extent(run_axis);
  const int64_t stride = box.dims() == 0 ? 1 : region.strides[run_axis];
  while (run_axis > 0 && run == logical[run_axis - 1] &&
         region.strides[run_axis - 1] == run * stride) {
    --run_axis;
    run *= box.extent(run_axis);
  }
  int64_t index = 0;
  for (int axis = 0; axis < box.dims(); ++axis) index += box.lo()[axis] * logical[axis];
  uint64_t sum = 0;
  int64_t offset = 0;
  Coords at = Coords::Filled(box.dims(), 0);
  while (true) {
    sum += SumOfRun(hash, elem_bytes, region.data + offset * elem_bytes, run, stride, index);
    int axis = run_axis - 1;
    for (; axis >= 0; --axis) {
      ++at[axis];
      index += logical[axis];
      offset += region.strides[axis];
      if (at[axis] < box.extent(axis)) break;
      index -= at[axis] * logical[axis];
      offset -= at[axis] * region.strides[axis];
      at[axis] = 0;
    }
    if (axis < 0) return sum;
  }
}

// c_i = r(i) - r(i + 1 mod m): each is a random-looking number, all m add up to zero.
uint64_t ReplicaCoefficient(uint64_t part_key, int64_t index, int64_t count) {
  const auto draw = [part_key](int64_t i) {
    return Reduce(Mix64(part_key ^ Mix64(static_cast<uint64_t>(i))));
  };
  return SubMod(draw(index), draw((index + 1) % count));
}

uint64_t PartKey(uint64_t key, TensorId tensor, const Box& part) {
  Hasher hasher;
  hasher.Add("replica").Add(key).Add(tensor);
  for (const int64_t lo : part.lo().span()) hasher.Add(lo);
  for (const int64_t hi : part.hi().span()) hasher.Add(hi);
  return hasher.hash();
}

}  // namespace

uint64_t ReplicaTerm(uint64_t key, TensorId tensor, const Box& part, int64_t index, int64_t count,
                     uint64_t value) {
  return MulMod(ReplicaCoefficient(PartKey(key, tensor, part), index, count), Reduce(value));
}

uint64_t AddReplicaTerms(uint64_t a, uint64_t b) { return AddMod(a, b); }

StateDigest Combine(const StateDigest& a, const StateDigest& b) {
  return {a.digest + b.digest, AddMod(a.replica, b.replica)};
}

StateDigest DigestOfRank(const ShardMap& map, RankId rank, const BufferReader& buffers,
                         uint64_t key) {
  StateDigest total;
  for (const Shard& shard : map.ShardsOf(rank)) {
    const StateTensor& tensor = map.catalog().tensor(shard.tensor);
    const ElemHash hash(tensor.id, tensor.kind, tensor.dtype);
    const ByteCount elem_bytes = ElemBytes(tensor.dtype);
    const ConstByteSpan bytes = buffers(shard.buffer);
    map.VisitHolders(shard.tensor, shard.box, [&](const Box& part, const HolderSet& holders) {
      const std::optional<int64_t> index = holders.IndexOf(rank);
      DT_CHECK_MSG(index.has_value(), "a rank is no holder of its own shard");
      int64_t offset = shard.offset;
      for (int axis = 0; axis < part.dims(); ++axis) {
        offset += (part.lo()[axis] - shard.box.lo()[axis]) * shard.strides[axis];
      }
      DT_CHECK(offset >= 0 && offset * elem_bytes < static_cast<ByteCount>(bytes.size()));
      const uint64_t sum = SumOfBox(hash, map.catalog().shape_of(shard.tensor), elem_bytes,
                                    {part, bytes.data() + offset * elem_bytes, shard.strides});
      total = Combine(total, {*index == 0 ? sum : 0,
                              ReplicaTerm(key, shard.tensor, part, *index, holders.size(), sum)});
    });
  }
  return total;
}

uint64_t DigestOfTensor(const StateCatalog& catalog, TensorId tensor, ConstByteSpan dense) {
  const StateTensor& state = catalog.tensor(tensor);
  const Shape& shape = catalog.shape_of(tensor);
  const ByteCount elem_bytes = ElemBytes(state.dtype);
  DT_CHECK(static_cast<ByteCount>(dense.size()) == ElemCount(shape) * elem_bytes);
  return SumOfBox(ElemHash(state.id, state.kind, state.dtype), shape, elem_bytes,
                  {Box::Whole(shape), dense.data(), RowMajorStrides(shape)});
}

}  // namespace dynatrain::vps
