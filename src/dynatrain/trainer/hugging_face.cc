#include "dynatrain/trainer/hugging_face.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "dynatrain/base/bf16.h"
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

Result<std::vector<float>> ToFloats(const io::TensorView& view) {
  std::vector<float> values(view.data.size() / static_cast<size_t>(vps::ElemBytes(view.dtype)));
  if (view.dtype == vps::DType::kF32) {
    std::memcpy(values.data(), view.data.data(), view.data.size());
    return values;
  }
  if (view.dtype != vps::DType::kBF16 && view.dtype != vps::DType::kF16) {
    return InvalidArgument("tensor {} is {}; fp32, bf16 or fp16 would do", view.name,
                           vps::DTypeName(view.dtype));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, view.data.data() + 2 * i, 2);
    values[i] = view.dtype == vps::DType::kBF16 ? FromBf16(bits) : FromF16(bits);
  }
  return values;
}

// The bytes of these numbers in fp32 or bf16.
std::vector<std::byte> ToBytes(const std::vector<float>& values, vps::DType dtype) {
  const size_t width = dtype == vps::DType::kBF16 ? 2 : 4;
  std::vector<std::byte> bytes(values.size() * width);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = ToBf16(values[i]);
    std::memcpy(bytes.data() + i * width, width == 2 ? static_cast<const void*>(&half) : &values[i],
                width);
  }
  return bytes;
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
  Result<io::TensorView> Take(const std::string& name) {
    const auto at = tensors_.find(name);
    if (at == tensors_.end()) return NotFound("there is no tensor {}", name);
    const io::TensorView view = at->second;
    tensors_.erase(at);
    return view;
  }
  const std::map<std::string, io::TensorView>& rest() const { return tensors_; }

 private:
  static Result<std::set<std::string>> FilesOf(const std::string& index) {
    DT_ASSIGN_OR_RETURN(const io::MappedFile file, io::MappedFile::Open(index));
    try {
      std::set<std::string> names;
      const json text = json::parse(file.text());
      for (const auto& [tensor, name] : text.at("weight_map").items()) {
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

// Where a box of one kind of a parameter lies in the only rank's buffers.
class Places {
 public:
  explicit Places(const vps::LayoutShardMap& map)
      : map_(map),
        rank_(map.Ranks().front()),
        shards_(map.ShardsOf(rank_)),
        buffers_(map.BuffersOf(rank_)) {
    DT_CHECK(map.Ranks().size() == 1);
  }
  // None if the parameter has no such kind.
  Result<std::optional<engine::Region>> Find(const HuggingFaceTensor& tensor,
                                             vps::Kind kind) const {
    const auto parameter = map_.catalog().FindParameter(tensor.parameter);
    DT_CHECK_MSG(parameter.has_value(), "the catalog lacks " + tensor.parameter);
    const auto id = map_.catalog().Find(*parameter, kind);
    if (!id) return std::optional<engine::Region>();
    DT_ASSIGN_OR_RETURN(const engine::Region region,
                        engine::RegionOf({*id, tensor.box}, shards_, buffers_));
    return std::optional(region);
  }
  vps::DType dtype(const engine::Region& region) const {
    return buffers_[static_cast<size_t>(region.buffer)].dtype;
  }

 private:
  const vps::LayoutShardMap& map_;
  const RankId rank_;
  const std::vector<vps::Shard> shards_;
  const std::vector<vps::Buffer> buffers_;
};

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

Status ReadHuggingFace(const std::string& folder, const models::ModelConfig& config,
                       const vps::LayoutShardMap& map, engine::StateBuffers* state) {
  DT_ASSIGN_OR_RETURN(const std::vector<HuggingFaceTensor> tensors, HuggingFaceTensors(config));
  DT_ASSIGN_OR_RETURN(Weights weights, Weights::Open(folder));
  for (int i = 0; i < state->num_buffers(); ++i) {
    const ByteSpan bytes = state->bytes(i);
    std::memset(bytes.data(), 0, bytes.size());
  }
  const Places places(map);
  for (const HuggingFaceTensor& tensor : tensors) {
    const Result<io::TensorView> view = weights.Take(tensor.name);
    if (!view.ok()) return view.status().Within(folder);
    if (view->shape != tensor.shape) {
      return InvalidArgument("{}: tensor {} has shape [{}], its config.json says [{}]", folder,
                             tensor.name, fmt::join(view->shape, ", "),
                             fmt::join(tensor.shape, ", "));
    }
    const Result<std::vector<float>> values = ToFloats(*view);
    if (!values.ok()) return values.status().Within(folder);
    for (const vps::Kind kind : {vps::Kind::kParam, vps::Kind::kMaster}) {
      DT_ASSIGN_OR_RETURN(const auto region, places.Find(tensor, kind));
      if (!region) continue;
      const std::vector<std::byte> run = ToBytes(*values, places.dtype(*region));
      engine::Unpack(run, *region, state->bytes(region->buffer));
    }
  }
  // A tied head may be there as a copy, and older files hold tables that are computed.
  for (const auto& [name, view] : weights.rest()) {
    const bool derived = (config.tied && name == "lm_head.weight") || name.ends_with("inv_freq");
    if (!derived) return InvalidArgument("{}: the model has no tensor {}", folder, name);
  }
  return {};
}

Status WriteHuggingFace(const std::string& folder, const models::ModelConfig& config,
                        const vps::LayoutShardMap& map, const engine::StateBuffers& state,
                        vps::DType dtype) {
  DT_ASSIGN_OR_RETURN(const std::vector<HuggingFaceTensor> tensors, HuggingFaceTensors(config));
  const Places places(map);
  std::vector<std::vector<std::byte>> data;
  std::vector<io::TensorView> views;
  for (const HuggingFaceTensor& tensor : tensors) {
    DT_ASSIGN_OR_RETURN(auto region, places.Find(tensor, vps::Kind::kParam));
    DT_CHECK(region.has_value());
    DT_ASSIGN_OR_RETURN(const auto master, places.Find(tensor, vps::Kind::kMaster));
    if (dtype == vps::DType::kF32 && master) region = master;
    std::vector<std::byte> run(static_cast<size_t>(region->bytes()));
    engine::Pack(state.bytes(region->buffer), *region, run);
    const io::TensorView held{tensor.name, places.dtype(*region), tensor.shape, run};
    DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToFloats(held));
    data.push_back(ToBytes(values, dtype));
    views.push_back({tensor.name, dtype, tensor.shape, data.back()});
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Unavailable("cannot make the folder {}: {}", folder, error.message());
  DT_RETURN_IF_ERROR(io::WriteSafetensors(folder + "/" + kSingleFile, views, {{"format", "pt"}}));
  return io::WriteFileAtomically(folder + "/config.json", ConfigJson(config, dtype).dump(2) + "\n");
}

}  // namespace dynatrain::trainer
