#include "dynatrain/models/scale.h"

#include <algorithm>

#include "dynatrain/models/catalog.h"

namespace dynatrain::models {
namespace {

// Widths stay multiples of this, or of a half of it down to 1, as the originals are.
constexpr int64_t kWidthUnit = 64;

// `width` * part / whole, a multiple of the largest power of two up to kWidthUnit that divides
// `width`; never 0 unless `width` is.
int64_t Shrink(int64_t width, int64_t part, int64_t whole) {
  if (width == 0) return 0;
  int64_t unit = kWidthUnit;
  while (width % unit != 0) unit /= 2;
  return std::max<int64_t>(1, width * part / whole / unit) * unit;
}

// Even head widths stay even: rotary positions pair them up.
int64_t ShrinkHead(int64_t width, int64_t part, int64_t whole) {
  if (width == 0) return 0;
  const int64_t unit = width % 2 == 0 ? 2 : 1;
  return std::max<int64_t>(1, width * part / whole / unit) * unit;
}

ModelConfig Narrowed(const ModelConfig& config, int64_t part) {
  const int64_t whole = config.head_dim;
  ModelConfig narrow = config;
  narrow.hidden = std::max<int64_t>(1, config.hidden * part / whole);
  for (int64_t ModelConfig::* width : {&ModelConfig::head_dim, &ModelConfig::rope_head_dim,
                                       &ModelConfig::nope_head_dim, &ModelConfig::v_head_dim}) {
    narrow.*width = ShrinkHead(config.*width, part, whole);
  }
  for (int64_t ModelConfig::* width :
       {&ModelConfig::ffn, &ModelConfig::moe_ffn, &ModelConfig::shared_ffn, &ModelConfig::vocab,
        &ModelConfig::max_positions, &ModelConfig::q_lora_rank, &ModelConfig::kv_lora_rank}) {
    narrow.*width = Shrink(config.*width, part, whole);
  }
  return narrow;
}

Result<ByteCount> StateBytes(const ModelConfig& config, const std::vector<vps::KindSpec>& kinds) {
  DT_ASSIGN_OR_RETURN(const auto catalog, MakeCatalog(config, kinds));
  return catalog->total_bytes();
}

}  // namespace

Result<ModelConfig> ScaledToFit(const ModelConfig& config, const std::vector<vps::KindSpec>& kinds,
                                ByteCount bytes) {
  DT_ASSIGN_OR_RETURN(const ByteCount whole, StateBytes(config, kinds));
  if (whole <= bytes) return config;
  int64_t fits = 0;  // head_dim parts that fit; `over` do not
  int64_t over = config.head_dim;
  while (over - fits > 1) {
    const int64_t middle = (fits + over) / 2;
    DT_ASSIGN_OR_RETURN(const ByteCount taken, StateBytes(Narrowed(config, middle), kinds));
    (taken <= bytes ? fits : over) = middle;
  }
  if (fits > 0) return Narrowed(config, fits);
  DT_ASSIGN_OR_RETURN(const ByteCount least, StateBytes(Narrowed(config, 1), kinds));
  return InvalidArgument("model {}: its state takes {} bytes at its narrowest, {} are allowed",
                         config.name, least, bytes);
}

}  // namespace dynatrain::models
