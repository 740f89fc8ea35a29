// Weights of a LLaMA model as Hugging Face keeps them (config.json and model.safetensors, or
// several files with model.safetensors.index.json), read into our state and written from it.
#ifndef DYNATRAIN_TRAINER_HUGGING_FACE_H_
#define DYNATRAIN_TRAINER_HUGGING_FACE_H_

#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/engine/state.h"
#include "dynatrain/models/config.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::trainer {

// One of their tensors: a box of one of our parameters, in row-major order.
struct HuggingFaceTensor {
  std::string name;            // "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // [out features, in features], or [features]
  std::string parameter;       // "layers.3.attn.qkv.weight"
  vps::Box box;
};

// All tensors of a model, none overlapping, together every element of every parameter. Refuses
// (kInvalidArgument) what the trainer has not: other families, biases, experts, scaled rotary
// positions.
Result<std::vector<HuggingFaceTensor>> HuggingFaceTensors(const models::ModelConfig& config);

// Fills params, and masters where there are any, of the one rank of `map` (a layout of one rank)
// from the folder; moments become zero. fp32, bf16 and fp16 files are converted (to bf16: nearest
// even). Names the tensor that is missing, superfluous or of another shape.
Status ReadHuggingFace(const std::string& folder, const models::ModelConfig& config,
                       const vps::LayoutShardMap& map, engine::StateBuffers* state);

// Writes config.json and model.safetensors to the folder, which is made if there is none. `dtype`
// is kF32 (of masters where there are any) or kBF16.
Status WriteHuggingFace(const std::string& folder, const models::ModelConfig& config,
                        const vps::LayoutShardMap& map, const engine::StateBuffers& state,
                        vps::DType dtype);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_HUGGING_FACE_H_
