// Weights of a LLaMA model as Hugging Face keeps them (config.json and model.safetensors, or
// several files with model.safetensors.index.json), read into our state and written from it.
#ifndef DYNATRAIN_TRAINER_HUGGING_FACE_H_
#define DYNATRAIN_TRAINER_HUGGING_FACE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
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

// A folder's weights as the state of a run that starts with them, buffer by buffer: params, and
// masters where there are any, from the files; moments zero. fp32, bf16 and fp16 files are converted
// (to bf16: nearest even). Not thread-safe.
class HuggingFaceReader {
 public:
  // `map`: a layout of one rank, whose buffers are read. Names the tensor that is missing,
  // superfluous, or of another shape or dtype.
  static Result<std::unique_ptr<HuggingFaceReader>> Open(
      const std::string& folder, const models::ModelConfig& config,
      std::shared_ptr<const vps::LayoutShardMap> map);
  virtual ~HuggingFaceReader() = default;
  // A buffer's bytes, valid until the next call. Nothing else of the state is in memory.
  virtual ConstByteSpan Buffer(vps::BufferIndex index) = 0;
};

// The elements of a box of a state tensor, in row-major order, to a run of as many bytes.
using BoxReader = std::function<Status(vps::TensorId, const vps::Box&, ByteSpan run)>;

// Writes config.json and model.safetensors to the folder, which is made if there is none; each file
// appears atomically. `dtype` is kF32 (of masters where there are any) or kBF16. Holds one of their
// tensors at a time.
Status WriteHuggingFace(const std::string& folder, const models::ModelConfig& config,
                        const vps::StateCatalog& catalog, const BoxReader& state, vps::DType dtype);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_HUGGING_FACE_H_
