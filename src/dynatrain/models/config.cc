#include "dynatrain/models/config.h"

#include <algorithm>
#include <optional>

#include "dynatrain/base/json.h"
#include "dynatrain/base/text.h"

namespace dynatrain::models {

namespace {

using Json = nlohmann::json;
using Family = ModelConfig::Family;

// A value as a message shows it.
std::string Told(const Json& value) { return Shortened(DumpJson(value)); }

// Reads the keys of one JSON object and keeps the first error.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  // A whole number of 1 to `most`. `fallback` stands in for a key that is missing or null; without
  // it that is an error.
  int64_t Count(const char* key, std::optional<int64_t> fallback = std::nullopt,
                int64_t most = int64_t{1} << 40) {
    const Json* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Fail(InvalidArgument("key '{}' is missing", key));
      return fallback.value_or(1);
    }
    if (!value->is_number_integer() || *value < 1 || *value > most) {
      Fail(InvalidArgument("key '{}' is {}; right is a whole number of 1 to {}", key, Told(*value),
                           most));
      return 1;
    }
    return value->get<int64_t>();
  }
  int32_t Layers(const char* key) {
    return static_cast<int32_t>(Count(key, std::nullopt, /*most=*/100000));
  }
  int32_t Experts(const char* key) {
    return static_cast<int32_t>(Count(key, std::nullopt, /*most=*/int64_t{1} << 20));
  }
  double Positive(const char* key, double fallback) {
    const Json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() > 0)) {
      Fail(InvalidArgument("key '{}' is {}; right is a number above 0", key, Told(*value)));
      return fallback;
    }
    return value->get<double>();
  }
  bool Flag(const char* key, bool fallback) {
    const Json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      Fail(InvalidArgument("key '{}' is {}; right is true or false", key, Told(*value)));
      return fallback;
    }
    return value->get<bool>();
  }
  std::string Text(const char* key, std::string fallback) {
    const Json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) {
      Fail(InvalidArgument("key '{}' is {}; right is a text", key, Told(*value)));
      return fallback;
    }
    return value->get<std::string>();
  }
  // The value of a key; none if it is missing or null.
  const Json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& status() const { return status_; }

 private:
  const Json& object_;
  Status status_;
};

// The width of a head where no key tells it.
int64_t HiddenPerHead(Reader* reader, const char* hidden_key, const char* heads_key,
                      const ModelConfig& config) {
  if (config.hidden % config.heads != 0) {
    reader->Fail(InvalidArgument("key '{}' is {}; right is a multiple of the {} of '{}'{}",
                                 hidden_key, config.hidden, config.heads, heads_key,
                                 config.family == Family::kLlama ? ", or a key 'head_dim'" : ""));
  }
  return std::max<int64_t>(config.hidden / config.heads, 1);
}

// "rope_theta" and "rope_scaling" of older files, "rope_parameters" of newer ones.
void ReadRope(Reader* reader, ModelConfig* config) {
  config->rope_theta = reader->Positive("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = reader->Find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      reader->Fail(InvalidArgument("key '{}' is {}; right is an object", key, Told(*rope)));
      return;
    }
    Reader inner(*rope);
    config->rope_theta = inner.Positive("rope_theta", config->rope_theta);
    config->rope_scaling = inner.Text("rope_type", inner.Text("type", "default"));
    if (config->rope_scaling == "default") config->rope_scaling.clear();
    reader->Fail(inner.status().Within(key));
  }
}

// Latent attention has other keys for the widths of its heads.
ModelConfig ReadLlama(Reader* reader, bool latent_attention = false) {
  ModelConfig config;
  config.family = Family::kLlama;
  config.layers = reader->Layers("num_hidden_layers");
  config.hidden = reader->Count("hidden_size");
  config.heads = reader->Count("num_attention_heads");
  config.kv_heads = reader->Count("num_key_value_heads", config.heads);
  if (reader->Find("head_dim") != nullptr) {
    config.head_dim = reader->Count("head_dim");
  } else if (!latent_attention) {
    config.head_dim = HiddenPerHead(reader, "hidden_size", "num_attention_heads", config);
  }
  config.ffn = reader->Count("intermediate_size");
  config.vocab = reader->Count("vocab_size");
  config.max_positions = reader->Count("max_position_embeddings", 2048);
  config.norm_eps = reader->Positive("rms_norm_eps", 1e-6);
  config.tied = reader->Flag("tie_word_embeddings", false);
  config.qkv_bias = config.out_bias = reader->Flag("attention_bias", false);
  config.mlp_bias = reader->Flag("mlp_bias", false);
  if (const std::string act = reader->Text("hidden_act", "silu"); act != "silu") {
    reader->Fail(InvalidArgument("key 'hidden_act' is \"{}\"; available is \"silu\"", act));
  }
  ReadRope(reader, &config);
  return config;
}

// Keys that would change which layers have experts, where only one value is available.
void ExpectOnly(Reader* reader, const char* key, int64_t value) {
  const Json* found = reader->Find(key);
  if (found != nullptr && *found != value) {
    reader->Fail(InvalidArgument("key '{}' is {}; available is {}", key, Told(*found), value));
  }
}

// How many experts a layer has, under `key`, and how many of them a token takes.
void ReadExperts(Reader* reader, const char* key, ModelConfig* config) {
  config->experts = reader->Experts(key);
  config->experts_per_token = reader->Experts("num_experts_per_tok");
  if (config->experts_per_token > config->experts) {
    reader->Fail(InvalidArgument("key 'num_experts_per_tok' is {}; right is 1 to the {} of '{}'",
                                 config->experts_per_token, config->experts, key));
  }
}

ModelConfig ReadQwen3(Reader* reader, bool moe) {
  ModelConfig config = ReadLlama(reader);
  config.qk_norm = true;
  if (!moe) return config;
  ReadExperts(reader, "num_experts", &config);
  config.moe_ffn = reader->Count("moe_intermediate_size");
  ExpectOnly(reader, "decoder_sparse_step", 1);
  const Json* dense = reader->Find("mlp_only_layers");
  if (dense != nullptr && !dense->empty()) {
    reader->Fail(InvalidArgument("key 'mlp_only_layers' is {}; available is none", Told(*dense)));
  }
  return config;
}

ModelConfig ReadMixtral(Reader* reader) {
  ModelConfig config = ReadLlama(reader);
  ReadExperts(reader, "num_local_experts", &config);
  config.moe_ffn = config.ffn;
  return config;
}

ModelConfig ReadDeepSeek(Reader* reader, bool v3) {
  ModelConfig config = ReadLlama(reader, /*latent_attention=*/true);
  ReadExperts(reader, "n_routed_experts", &config);
  config.moe_ffn = reader->Count("moe_intermediate_size");
  const Json* shared = reader->Find("n_shared_experts");
  if (shared != nullptr && *shared != 0) {
    const int64_t count = reader->Count("n_shared_experts");
    if (count > (int64_t{1} << 40) / config.moe_ffn) {
      reader->Fail(
          InvalidArgument("key 'n_shared_experts' is {}; of {} columns each that is too many",
                          count, config.moe_ffn));
      return config;
    }
    config.shared_ffn = count * config.moe_ffn;
  }
  const Json* dense = reader->Find("first_k_dense_replace");
  if (dense != nullptr && *dense != 0)
    config.dense_layers = reader->Layers("first_k_dense_replace");
  ExpectOnly(reader, "moe_layer_freq", 1);
  config.router_score_bias = v3;
  if (reader->Find("q_lora_rank") != nullptr) config.q_lora_rank = reader->Count("q_lora_rank");
  config.kv_lora_rank = reader->Count("kv_lora_rank");
  config.rope_head_dim = reader->Count("qk_rope_head_dim");
  config.nope_head_dim = reader->Count("qk_nope_head_dim");
  config.v_head_dim = reader->Count("v_head_dim");
  config.kv_heads = config.heads;
  config.head_dim = config.nope_head_dim + config.rope_head_dim;
  return config;
}

ModelConfig ReadGpt2(Reader* reader) {
  ModelConfig config;
  config.family = Family::kGpt;
  config.layers = reader->Layers("n_layer");
  config.hidden = reader->Count("n_embd");
  config.heads = config.kv_heads = reader->Count("n_head");
  config.head_dim = HiddenPerHead(reader, "n_embd", "n_head", config);
  config.ffn = reader->Count("n_inner", 4 * config.hidden);
  config.vocab = reader->Count("vocab_size");
  config.max_positions = reader->Count("n_positions");
  config.norm_eps = reader->Positive("layer_norm_epsilon", 1e-5);
  config.tied = reader->Flag("tie_word_embeddings", true);
  config.qkv_bias = config.out_bias = config.mlp_bias = true;
  return config;
}

Status CheckConfig(const ModelConfig& config) {
  if (config.heads % config.kv_heads != 0) {
    return InvalidArgument("{} query heads are not a multiple of {} key-value heads", config.heads,
                           config.kv_heads);
  }
  return Status::Ok();
}

}  // namespace

Result<ModelConfig> ParseConfig(std::string_view json) {
  DT_ASSIGN_OR_RETURN(const Json object, ParseJson(json));
  if (!object.is_object()) return InvalidArgument("not a JSON object");
  Reader reader(object);
  const std::string type = reader.Text("model_type", "");
  ModelConfig config;
  if (type == "llama" || type == "mistral") {
    config = ReadLlama(&reader);
  } else if (type == "qwen2") {
    config = ReadLlama(&reader);
    config.qkv_bias = true;
    config.out_bias = false;
  } else if (type == "qwen3" || type == "qwen3_moe") {
    config = ReadQwen3(&reader, type == "qwen3_moe");
  } else if (type == "mixtral") {
    config = ReadMixtral(&reader);
  } else if (type == "deepseek_v2" || type == "deepseek_v3") {
    config = ReadDeepSeek(&reader, type == "deepseek_v3");
  } else if (type == "gpt2") {
    config = ReadGpt2(&reader);
  } else {
    reader.Fail(InvalidArgument(
        "model_type '{}' is not available; available are llama, mistral, qwen2, qwen3, qwen3_moe, "
        "mixtral, deepseek_v2, deepseek_v3, gpt2",
        type));
  }
  DT_RETURN_IF_ERROR(reader.status());
  DT_RETURN_IF_ERROR(CheckConfig(config));
  config.name = type;
  return config;
}

}  // namespace dynatrain::models
