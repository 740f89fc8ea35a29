#include "dynatrain/trainer/hugging_face.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "dynatrain/base/bf16.h"
#include "dynatrain/base/json.h"
#include "dynatrain/engine/copy.h"
#include "dynatrain/io/file.h"
#include "dynatrain/io/safetensors.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/trainer/options.h"

namespace dynatrain::trainer {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
// So much of a tensor is converted at a time.
constexpr size_t kSlabBytes = size_t{1} << 20;

float FromF16(uint16_t bits) {
  const auto sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float value = static_cast<float>(fraction) * 0x1.0p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

bool IsFloat(vps::DType dtype) {
  return dtype == vps::DType::kF32 || dtype == vps::DType::kBF16 || dtype == vps::DType::kF16;
}

float ToFloat(const std::byte* at, vps::DType dtype) {
  float value = 0;
  uint16_t bits = 0;
  if (dtype == vps::DType::kF32) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == vps::DType::kBF16 ? FromBf16(bits) : FromF16(bits);
}

// The numbers in another dtype, kF32 or kBF16, to `to`. Precondition: IsFloat(from_dtype).
void Convert(ConstByteSpan from, vps::DType from_dtype, vps::DType to_dtype,
             std::vector<std::byte>* to) {
  const auto from_width = static_cast<size_t>(vps::ElemBytes(from_dtype));
  const auto to_width = static_cast<size_t>(vps::ElemBytes(to_dtype));
  to->resize(from.size() / from_width * to_width);
  for (size_t i = 0; i < from.size() / from_width; ++i) {
    const float value = ToFloat(from.data() + i * from_width, from_dtype);
    const uint16_t half = ToBf16(value);
    std::memcpy(to->data() + i * to_width,
                to_width == sizeof(half) ? static_cast<const void*>(&half) : &value, to_width);
  }
}

// The files of a folder with what each tensor is in.
class Weights {
 public:
  static Result<Weights> Open(const std::string& folder) {
    Weights weights;
    std::error_code ignored;
    const std::string index = folder + "/" + kIndexFile;
    if (!fs::exists(index, ignored)) {
      DT_RETURN_IF_ERROR(weights.Add(folder + "/" + kSingleFile));
      return weights;
    }
    DT_ASSIGN_OR_RETURN(const std::set<std::string> names, FilesOf(index));
    for (const std::string& name : names) DT_RETURN_IF_ERROR(weights.Add(folder + "/" + name));
    return weights;
  }
  // Hands the tensor out; what is left at the end is superfluous.
  Result<io::TensorView> Take(const HuggingFaceTensor& wanted) {
    const auto at = tensors_.find(wanted.name);
    if (at == tensors_.end()) return NotFound("there is no tensor {}", wanted.name);
    io::TensorView view = std::move(at->second);
    tensors_.erase(at);
    if (view.shape != wanted.shape) {
      return InvalidArgument("tensor {} has shape [{}], its config.json says [{}]", wanted.name,
                             fmt::join(view.shape, ", "), fmt::join(wanted.shape, ", "));
    }
    if (IsFloat(view.dtype)) return view;
    return InvalidArgument("tensor {} is {}; fp32, bf16 or fp16 would do", wanted.name,
                           vps::DTypeName(view.dtype));
  }
  // A tied head may be there as a copy, and older files hold tables that are computed.
  Status CheckRest(const models::ModelConfig& config) const {
    for (const auto& [name, view] : tensors_) {
      const bool derived = (config.tied && name == "lm_head.weight") || name.ends_with("inv_freq");
      if (!derived) return InvalidArgument("the model has no tensor {}", name);
    }
    return {};
  }

 private:
  static Result<std::set<std::string>> FilesOf(const std::string& index) {
    DT_ASSIGN_OR_RETURN(const io::MappedFile file, io::MappedFile::Open(index));
    const Result<json> text = ParseJson(file.text());
    if (!text.ok()) return DataLoss("{}: {}", index, text.status().message());
    try {
      std::set<std::string> names;
      for (const auto& [tensor, name] : text->at("weight_map").items()) {
        names.insert(name.get<std::string>());
      }
      return names;
    } catch (const json::exception& error) {
      return DataLoss("{}: {}", index, error.what());
    }
  }
  Status Add(const std::string& path) {
    DT_ASSIGN_OR_RETURN(io::SafetensorsFile file, io::SafetensorsFile::Open(path));
    files_.push_back(std::move(file));
    for (const io::TensorView& view : files_.back().tensors()) {
      if (tensors_.emplace(view.name, view).second) continue;
      return InvalidArgument("{}: tensor {} is in another file too", path, view.name);
    }
    return {};
  }

  std::vector<io::SafetensorsFile> files_;
  std::map<std::string, io::TensorView> tensors_;
};

// What of a file's tensor goes where in a buffer.
struct Placed {
  io::TensorView from;
  engine::Region to;
};

class Reader final : public HuggingFaceReader {
 public:
  Reader(Weights weights, std::shared_ptr<const vps::LayoutShardMap> map)
      : weights_(std::move(weights)),
        map_(std::move(map)),
        rank_(map_->Ranks().front()),
        shards_(map_->ShardsOf(rank_)),
        buffers_(map_->BuffersOf(rank_)),
        placed_(buffers_.size()) {
    DT_CHECK(map_->Ranks().size() == 1);
  }

  Status Place(const std::string& folder, const models::ModelConfig& config) {
    DT_ASSIGN_OR_RETURN(const std::vector<HuggingFaceTensor> tensors, HuggingFaceTensors(config));
    for (const HuggingFaceTensor& tensor : tensors) {
      const Result<io::TensorView> view = weights_.Take(tensor);
      if (!view.ok()) return view.status().Within(folder);
      const auto parameter = map_->catalog().FindParameter(tensor.parameter);
      DT_CHECK_MSG(parameter.has_value(), "the catalog lacks " + tensor.parameter);
      for (const vps::Kind kind : {vps::Kind::kParam, vps::Kind::kMaster}) {
        const auto id = map_->catalog().Find(*parameter, kind);
        if (!id) continue;
        DT_ASSIGN_OR_RETURN(const engine::Region region,
                            engine::RegionOf({*id, tensor.box}, shards_, buffers_));
        placed_[static_cast<size_t>(region.buffer)].push_back({*view, region});
      }
    }
    return weights_.CheckRest(config).Within(folder);
  }

  ConstByteSpan Buffer(vps::BufferIndex index) override {
    if (index == held_) return bytes_;
    const vps::Buffer& buffer = buffers_[static_cast<size_t>(index)];
    held_ = index;
    bytes_.assign(static_cast<size_t>(buffer.bytes()), std::byte{0});
    for (const Placed& placed : placed_[static_cast<size_t>(index)]) Fill(placed, buffer.dtype);
    return bytes_;
  }

 private:
  void Fill(const Placed& placed, vps::DType dtype) {
    const auto width = static_cast<size_t>(vps::ElemBytes(placed.from.dtype));
    ConstByteSpan left = placed.from.data;
    engine::ForEachSlab(placed.to, kSlabBytes, [&](const engine::Region& slab) {
      const auto elems = static_cast<size_t>(vps::ElemCount(slab.extent));
      Convert(left.first(elems * width), placed.from.dtype, dtype, &slab_);
      engine::Unpack(slab_, slab, bytes_);
      left = left.subspan(elems * width);
    });
    io::MappedFile::Forget(placed.from.data);
  }

  Weights weights_;
  const std::shared_ptr<const vps::LayoutShardMap> map_;
  const RankId rank_;
  const std::vector<vps::Shard> shards_;
  const std::vector<vps::Buffer> buffers_;
  std::vector<std::vector<Placed>> placed_;  // by buffer
  vps::BufferIndex held_ = -1;
  std::vector<std::byte> bytes_;  // of buffer held_
  std::vector<std::byte> slab_;
};

// The kind of a parameter that a file of this dtype is written from.
vps::TensorId SourceOf(const vps::StateCatalog& catalog, const HuggingFaceTensor& tensor,
                       vps::DType dtype) {
  const auto parameter = catalog.FindParameter(tensor.parameter);
  DT_CHECK_MSG(parameter.has_value(), "the catalog lacks " + tensor.parameter);
  const auto master = catalog.Find(*parameter, vps::Kind::kMaster);
  if (dtype == vps::DType::kF32 && master) return *master;
  const auto param = catalog.Find(*parameter, vps::Kind::kParam);
  DT_CHECK_MSG(param.has_value(), "no param kind of " + tensor.parameter);
  return *param;
}

json ConfigJson(const models::ModelConfig& config, vps::DType dtype) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"hidden_size", config.hidden},
          {"intermediate_size", config.ffn},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab},
          {"max_position_embeddings", config.max_positions},
          {"rms_norm_eps", config.norm_eps},
          {"rope_theta", config.rope_theta},
          {"tie_word_embeddings", config.tied},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"torch_dtype", dtype == vps::DType::kBF16 ? "bfloat16" : "float32"}};
}

void AddLayer(const models::ModelConfig& c, int32_t layer, std::vector<HuggingFaceTensor>* all) {
  const std::string theirs = fmt::format("model.layers.{}.", layer);
  const std::string ours = fmt::format("layers.{}.", layer);
  const int64_t q = c.q_per_kv();
  // Query heads of one key-value head follow each other in both orders.
  const auto heads = [&](const char* name, int64_t begin, int64_t end) {
    all->push_back({theirs + "self_attn." + name + ".weight",
                    {c.kv_heads * (end - begin) * c.head_dim, c.hidden},
                    ours + "attn.qkv.weight",
                    {{0, begin, 0, 0}, {c.kv_heads, end, c.head_dim, c.hidden}}});
  };
  const auto whole = [&](const char* their_name, const char* our_name, std::vector<int64_t> shape,
                         const vps::Shape& logical) {
    all->push_back({theirs + their_name + ".weight", std::move(shape), ours + our_name + ".weight",
                    vps::Box::Whole(logical)});
  };
  whole("input_layernorm", "input_norm", {c.hidden}, {c.hidden});
  heads("q_proj", 0, q);
  heads("k_proj", q, q + 1);
  heads("v_proj", q + 1, q + 2);
  whole("self_attn.o_proj", "attn.out", {c.hidden, c.heads * c.head_dim},
        {c.hidden, c.kv_heads, q, c.head_dim});
  whole("post_attention_layernorm", "post_norm", {c.hidden}, {c.hidden});
  for (int64_t part = 0; part < 2; ++part) {
    all->push_back({theirs + (part == 0 ? "mlp.gate_proj.weight" : "mlp.up_proj.weight"),
                    {c.ffn, c.hidden},
                    ours + "mlp.gate_up.weight",
                    {{part, 0, 0}, {part + 1, c.ffn, c.hidden}}});
  }
  whole("mlp.down_proj", "mlp.down", {c.hidden, c.ffn}, {c.hidden, c.ffn});
}

}  // namespace

Result<std::vector<HuggingFaceTensor>> HuggingFaceTensors(const models::ModelConfig& config) {
  DT_RETURN_IF_ERROR(CheckModel(config));
  DT_RETURN_IF_ERROR(models::CheckLayout(config, vps::Layout{}));
  std::vector<HuggingFaceTensor> all;
  const vps::Box table = vps::Box::Whole({config.vocab, config.hidden});
  const std::vector<int64_t> table_shape = {config.vocab, config.hidden};
  all.push_back({"model.embed_tokens.weight", table_shape, "embedding.weight", table});
  for (int32_t layer = 0; layer < config.layers; ++layer) AddLayer(config, layer, &all);
  all.push_back({"model.norm.weight",
                 {config.hidden},
                 "final_norm.weight",
                 vps::Box::Whole({config.hidden})});
  if (!config.tied) all.push_back({"lm_head.weight", table_shape, "head.weight", table});
  return all;
}

Result<std::unique_ptr<HuggingFaceReader>> HuggingFaceReader::Open(
    const std::string& folder, const models::ModelConfig& config,
    std::shared_ptr<const vps::LayoutShardMap> map) {
  DT_ASSIGN_OR_RETURN(Weights weights, Weights::Open(folder));
  auto reader = std::make_unique<Reader>(std::move(weights), std::move(map));
  DT_RETURN_IF_ERROR(reader->Place(folder, config));
  return std::unique_ptr<HuggingFaceReader>(std::move(reader));
}

Status WriteHuggingFace(const std::string& folder, const models::ModelConfig& config,
                        const vps::StateCatalog& catalog, const BoxReader& state,
                        vps::DType dtype) {
  DT_ASSIGN_OR_RETURN(const std::vector<HuggingFaceTensor> tensors, HuggingFaceTensors(config));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Unavailable("cannot make the folder {}: {}", folder, error.message());
  std::vector<io::TensorSpec> specs;
  for (const HuggingFaceTensor& tensor : tensors) {
    specs.push_back({tensor.name, dtype, tensor.shape});
  }
  DT_ASSIGN_OR_RETURN(
      io::SafetensorsWriter writer,
      io::SafetensorsWriter::Create(folder + "/" + kSingleFile, specs, {{"format", "pt"}}));
  std::vector<std::byte> run, slab;
  for (const HuggingFaceTensor& tensor : tensors) {
    const vps::TensorId source = SourceOf(catalog, tensor, dtype);
    const vps::DType held = catalog.tensor(source).dtype;
    const auto width = static_cast<size_t>(vps::ElemBytes(held));
    run.resize(static_cast<size_t>(tensor.box.elems()) * width);
    DT_RETURN_IF_ERROR(state(source, tensor.box, run));
    for (ConstByteSpan left = run; !left.empty();) {
      const ConstByteSpan part = left.first(std::min(left.size(), kSlabBytes / width * width));
      Convert(part, held, dtype, &slab);
      DT_RETURN_IF_ERROR(writer.Append(slab));
      left = left.subspan(part.size());
    }
  }
  DT_RETURN_IF_ERROR(writer.Finish());
  return io::WriteFileAtomically(folder + "/config.json",
                                 DumpJson(ConfigJson(config, dtype), 2) + "\n");
}

}  // namespace dynatrain::trainer
