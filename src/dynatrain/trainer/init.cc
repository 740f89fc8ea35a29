#include "dynatrain/trainer/init.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "dynatrain/base/bf16.h"
#include "dynatrain/base/hash.h"
#include "dynatrain/vps/shard_elements.h"

namespace dynatrain::trainer {
namespace {

constexpr double kStdDev = 0.02;

uint64_t StreamOf(uint64_t seed, std::string_view name) {
  return Hasher().Add("initial weights").Add(seed).Add(name).hash();
}

// Uniform in (0, 1].
double Uniform(uint64_t bits) { return static_cast<double>((bits >> 11) + 1) * 0x1.0p-53; }

double NormalInStream(uint64_t stream, int64_t index) {
  const auto i = static_cast<uint64_t>(index);
  const double radius = std::sqrt(-2.0 * std::log(Uniform(Mix64(stream + 2 * i))));
  return radius * std::cos(2.0 * std::numbers::pi * Uniform(Mix64(stream + 2 * i + 1)));
}

}  // namespace

double NormalAt(uint64_t seed, std::string_view name, int64_t index) {
  return NormalInStream(StreamOf(seed, name), index);
}

Status InitialiseState(const models::ModelConfig& config, const vps::ShardMap& map, RankId rank,
                       uint64_t seed, engine::StateBuffers* state) {
  for (int i = 0; i < state->num_buffers(); ++i) {
    const vps::Buffer& buffer = state->buffer(i);
    const bool bf16 = buffer.dtype == vps::DType::kBF16 && buffer.kind == vps::Kind::kParam;
    if (buffer.dtype != vps::DType::kF32 && !bf16) {
      return InvalidArgument(
          "state buffer {} is {}; the trainer works on fp32, and on bf16 parameters", buffer.name,
          vps::DTypeName(buffer.dtype));
    }
    const ByteSpan bytes = state->bytes(i);
    std::memset(bytes.data(), 0, bytes.size());
  }
  for (const vps::Shard& shard : map.ShardsOf(rank)) {
    const vps::StateTensor& tensor = map.catalog().tensor(shard.tensor);
    if (tensor.kind != vps::Kind::kParam && tensor.kind != vps::Kind::kMaster) continue;
    const vps::Parameter& parameter = map.catalog().parameter_of(shard.tensor);
    const uint64_t stream = StreamOf(seed, parameter.name);
    const bool norm = parameter.name.ends_with("norm.weight");
    const bool output =
        parameter.name.ends_with("attn.out.weight") || parameter.name.ends_with("mlp.down.weight");
    const double std_dev = output ? kStdDev / std::sqrt(2.0 * config.layers) : kStdDev;
    std::byte* out = state->bytes(shard.buffer).data();
    const bool bf16 = tensor.dtype == vps::DType::kBF16;
    vps::ForEachElement(parameter.shape, shard, [&](int64_t index, int64_t element) {
      const float value = norm ? 1.0f : static_cast<float>(std_dev * NormalInStream(stream, index));
      if (bf16) {
        reinterpret_cast<uint16_t*>(out)[element] = ToBf16(value);
      } else {
        reinterpret_cast<float*>(out)[element] = value;
      }
    });
  }
  return {};
}

}  // namespace dynatrain::trainer
