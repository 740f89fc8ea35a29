// A model made narrower so that its state fits into a small machine's memory.
#ifndef DYNATRAIN_MODELS_SCALE_H_
#define DYNATRAIN_MODELS_SCALE_H_

#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/models/config.h"
#include "dynatrain/vps/catalog.h"

namespace dynatrain::models {

// The widest version of `config` whose state in `kinds`, unsharded, takes at most `bytes`; `config`
// itself if it fits. All widths shrink in proportion (hidden, head_dim, ffn and moe_ffn, vocabulary,
// positions, latent ranks); the numbers of layers, heads and experts stay, so layouts that fit
// `config` fit the result. kInvalidArgument, with the bytes that the narrowest version takes, if
// that is too much.
Result<ModelConfig> ScaledToFit(const ModelConfig& config, const std::vector<vps::KindSpec>& kinds,
                                ByteCount bytes);

}  // namespace dynatrain::models

#endif  // DYNATRAIN_MODELS_SCALE_H_
