#include "dynatrain/engine/derive.h"

#include "dynatrain/base/bf16.h"

namespace dynatrain::engine {
namespace {

void RoundRegion(const float* from, const Region& master, uint16_t* to, const Region& parameter) {
  const int last = master.extent.dims() - 1;
  const int64_t row = last < 0 ? 1 : master.extent[last];
  if (row == 0) return;
  vps::Coords at = master.extent;  // of the row's first element
  for (int a = 0; a <= last; ++a) at[a] = 0;
  for (int64_t rows = vps::ElemCount(master.extent) / row; rows > 0; --rows) {
    int64_t in = master.offset, out = parameter.offset;
    for (int a = 0; a < last; ++a) {
      in += at[a] * master.strides[a];
      out += at[a] * parameter.strides[a];
    }
    const int64_t in_stride = last < 0 ? 1 : master.strides[last];
    const int64_t out_stride = last < 0 ? 1 : parameter.strides[last];
    for (int64_t i = 0; i < row; ++i) to[out + i * out_stride] = ToBf16(from[in + i * in_stride]);
    for (int a = last - 1; a >= 0; --a) {
      if (++at[a] < master.extent[a]) break;
      at[a] = 0;
    }
  }
}

}  // namespace

Result<std::vector<Derivation>> PlanDerivations(const planner::Route& route,
                                                const vps::ShardMap& to) {
  std::vector<Derivation> derivations;
  if (route.derives.empty()) return derivations;
  const std::vector<vps::Shard> shards = to.ShardsOf(route.rank);
  const std::vector<vps::Buffer> buffers = to.BuffersOf(route.rank);
  for (const planner::Piece& piece : route.derives) {
    const vps::StateTensor& tensor = to.catalog().tensor(piece.tensor);
    const auto master = to.catalog().Find(tensor.parameter, vps::Kind::kMaster);
    if (tensor.dtype != vps::DType::kBF16 || !master ||
        to.catalog().tensor(*master).dtype != vps::DType::kF32) {
      return InvalidArgument("{}: only a bf16 parameter can be computed from an fp32 master",
                             to.catalog().NameOf(piece.tensor));
    }
    DT_ASSIGN_OR_RETURN(const Region parameter, RegionOf(piece, shards, buffers));
    DT_ASSIGN_OR_RETURN(const Region source, RegionOf({*master, piece.box}, shards, buffers));
    derivations.push_back({source, parameter});
  }
  return derivations;
}

void Derive(const std::vector<Derivation>& derivations, StateBuffers* state) {
  for (const Derivation& d : derivations) {
    const StateBuffers& masters = *state;
    RoundRegion(reinterpret_cast<const float*>(masters.bytes(d.master.buffer).data()), d.master,
                reinterpret_cast<uint16_t*>(state->bytes(d.parameter.buffer).data()), d.parameter);
  }
}

}  // namespace dynatrain::engine
