#include "dynatrain/models/catalog.h"

#include <algorithm>
#include <array>

namespace dynatrain::models {

namespace {

using vps::Home;
using vps::Parameter;
using vps::Shape;
using vps::Split;
using vps::StateCatalog;

class CatalogBuilder {
 public:
  CatalogBuilder(const ModelConfig& config, std::vector<vps::KindSpec> kinds,
                 const CatalogOptions& options)
      : c_(config), kinds_(std::move(kinds)), options_(options) {}

  Result<std::shared_ptr<const StateCatalog>> Build() {
    AddEmbedding();
    for (int32_t layer = 0; layer < c_.layers; ++layer) AddLayer(layer);
    AddHead();
    DT_RETURN_IF_ERROR(status_);
    return std::shared_ptr<const StateCatalog>(std::make_shared<StateCatalog>(std::move(catalog_)));
  }

 private:
  bool gpt() const { return c_.family == ModelConfig::Family::kGpt; }

  void Add(Parameter parameter) {
    if (!status_.ok()) return;
    if (parameter.kinds.empty()) parameter.kinds = kinds_;
    status_ = catalog_.Add(std::move(parameter));
  }
  void AddMatrix(const std::string& name, const Shape& shape, Split split,
                 const std::vector<Home>& homes, int row_axes = 1) {
    Add({.name = name + ".weight",
         .shape = shape,
         .split = std::move(split),
         .homes = homes,
         .row_axes = row_axes});
  }
  void AddBias(const std::string& name, const Shape& shape, Split split, const Home& home) {
    Add({.name = name + ".bias",
         .shape = shape,
         .split = std::move(split),
         .homes = {home},
         .weight_decay = false,
         .row_axes = shape.dims()});
  }
  void AddScale(const std::string& name, int64_t width, const Home& home) {
    Add({.name = name + ".weight", .shape = {width}, .homes = {home}, .weight_decay = false});
  }
  void AddNorm(const std::string& name, const Home& home) {
    AddScale(name, c_.hidden, home);
    if (gpt()) AddBias(name, {c_.hidden}, Split::None(), home);
  }

  Split VocabSplit() const {
    return options_.vocab_divisor > 0 ? Split::Padded(options_.vocab_divisor) : Split::Balanced(0);
  }
  void AddEmbedding() {
    std::vector<Home> homes = {Home::Embedding()};
    if (c_.tied) homes.push_back(Home::Head());
    AddMatrix("embedding", {c_.vocab, c_.hidden}, VocabSplit(), homes);
    if (gpt()) {
      AddMatrix("embedding.position", {c_.max_positions, c_.hidden}, Split::None(),
                {Home::Embedding()});
    }
  }
  void AddLayer(int32_t layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    const Home home = Home::Layer(layer);
    AddNorm(prefix + "input_norm", home);
    if (c_.kv_lora_rank > 0) {
      AddLatentAttention(prefix + "attn.", home);
    } else {
      AddAttention(prefix + "attn.", home);
    }
    AddNorm(prefix + "post_norm", home);
    if (c_.IsMoe(layer)) {
      AddExperts(prefix + "mlp.", home);
    } else {
      AddMlp(prefix + "mlp.", c_.ffn, home);
    }
  }

  void AddAttention(const std::string& prefix, const Home& home) {
    using KvHeads = CatalogOptions::KvHeads;
    const int64_t q = c_.q_per_kv();
    const Split qkv = options_.kv_heads == KvHeads::kBalanced ? Split::Balanced(0)
                      : options_.kv_heads == KvHeads::kGroups ? Split::Groups(0, 2)
                                                              : Split::Rows();
    const Split out =
        options_.kv_heads == KvHeads::kBalanced ? Split::Balanced(1) : Split::Groups(1, 0);
    const std::optional<vps::StoredParts> stored =
        options_.concatenated_qkv ? std::optional(vps::StoredParts{1, {q, 1, 1}}) : std::nullopt;
    Add({.name = prefix + "qkv.weight",
         .shape = {c_.kv_heads, q + 2, c_.head_dim, c_.hidden},
         .split = qkv,
         .homes = {home},
         .stored = stored,
         .row_axes = 3});
    if (c_.qkv_bias) {
      Add({.name = prefix + "qkv.bias",
           .shape = {c_.kv_heads, q + 2, c_.head_dim},
           .split = qkv,
           .homes = {home},
           .weight_decay = false,
           .stored = stored,
           .row_axes = 3});
    }
    if (c_.qk_norm) {
      AddScale(prefix + "q_norm", c_.head_dim, home);
      AddScale(prefix + "k_norm", c_.head_dim, home);
    }
    AddMatrix(prefix + "out", {c_.hidden, c_.kv_heads, q, c_.head_dim}, out, {home});
    if (c_.out_bias) AddBias(prefix + "out", {c_.hidden}, Split::None(), home);
  }

  void AddLatentAttention(const std::string& prefix, const Home& home) {
    const Shape query = {c_.heads, c_.nope_head_dim + c_.rope_head_dim,
                         c_.q_lora_rank > 0 ? c_.q_lora_rank : c_.hidden};
    if (c_.q_lora_rank > 0) {
      AddMatrix(prefix + "q_down", {c_.q_lora_rank, c_.hidden}, Split::None(), {home});
      AddScale(prefix + "q_down_norm", c_.q_lora_rank, home);
      AddMatrix(prefix + "q_up", query, Split::Balanced(0), {home}, 2);
    } else {
      AddMatrix(prefix + "q", query, Split::Balanced(0), {home}, 2);
    }
    AddMatrix(prefix + "kv_down", {c_.kv_lora_rank + c_.rope_head_dim, c_.hidden}, Split::None(),
              {home});
    AddScale(prefix + "kv_down_norm", c_.kv_lora_rank, home);
    AddMatrix(prefix + "kv_up", {c_.heads, c_.nope_head_dim + c_.v_head_dim, c_.kv_lora_rank},
              Split::Balanced(0), {home}, 2);
    AddMatrix(prefix + "out", {c_.hidden, c_.heads, c_.v_head_dim}, Split::Balanced(1), {home});
  }

  // The axes of gate and up: halves, or blocks in turns.
  std::vector<int64_t> GatedColumns(const std::string& prefix, int64_t ffn) {
    const int64_t block = options_.glu_block;
    if (block <= 0) return {2, ffn};
    if (ffn % block != 0 && status_.ok()) {
      status_ = InvalidArgument(
          "{}gate_up: {} columns are not a multiple of the {} of a block of gate and up", prefix,
          ffn, block);
    }
    return {ffn / block, 2, block};
  }
  static Shape Join(std::vector<int64_t> front, const std::vector<int64_t>& middle,
                    const std::vector<int64_t>& back) {
    front.insert(front.end(), middle.begin(), middle.end());
    front.insert(front.end(), back.begin(), back.end());
    return Shape(front);
  }

  void AddMlp(const std::string& prefix, int64_t ffn, const Home& home) {
    if (gpt()) {
      AddMatrix(prefix + "up", {ffn, c_.hidden}, Split::Balanced(0), {home});
      if (c_.mlp_bias) AddBias(prefix + "up", {ffn}, Split::Balanced(0), home);
    } else {
      const std::vector<int64_t> columns = GatedColumns(prefix, ffn);
      const Split split = Split::Balanced(options_.glu_block > 0 ? 0 : 1);
      AddMatrix(prefix + "gate_up", Join({}, columns, {c_.hidden}), split, {home},
                static_cast<int>(columns.size()));
      if (c_.mlp_bias) AddBias(prefix + "gate_up", Join({}, columns, {}), split, home);
    }
    AddMatrix(prefix + "down", {c_.hidden, ffn}, Split::Balanced(1), {home});
    if (c_.mlp_bias) AddBias(prefix + "down", {c_.hidden}, Split::None(), home);
  }

  void AddExperts(const std::string& prefix, const Home& home) {
    AddMatrix(prefix + "router", {c_.experts, c_.hidden}, Split::None(), {home});
    if (c_.router_score_bias) {
      Add({.name = prefix + "router.score_bias",
           .shape = {c_.experts},
           .homes = {home},
           .kinds = {{vps::Kind::kParam, vps::DType::kF32}},
           .trainable = false,
           .weight_decay = false});
    }
    const auto add = [&](const std::string& name, const Shape& shape, int axis,
                         vps::Experts experts) {
      Add({.name = name + ".weight",
           .shape = shape,
           .split = Split::Balanced(axis),
           .homes = {home},
           .experts = experts,
           .row_axes = shape.dims() - 1});
    };
    const std::vector<int64_t> columns = GatedColumns(prefix, c_.moe_ffn);
    const int split = options_.glu_block > 0 ? 0 : 1;
    if (options_.expert_stacks) {
      add(prefix + "experts.gate_up", Join({c_.experts}, columns, {c_.hidden}), split + 1,
          vps::Experts::Stack(0));
      add(prefix + "experts.down", {c_.experts, c_.hidden, c_.moe_ffn}, 2, vps::Experts::Stack(0));
    } else {
      for (int32_t e = 0; e < c_.experts; ++e) {
        const std::string expert = fmt::format("{}experts.{}.", prefix, e);
        const vps::Experts one = vps::Experts::One(e, c_.experts);
        add(expert + "gate_up", Join({}, columns, {c_.hidden}), split, one);
        add(expert + "down", {c_.hidden, c_.moe_ffn}, 1, one);
      }
    }
    if (c_.shared_ffn > 0) AddMlp(prefix + "shared.", c_.shared_ffn, home);
  }

  void AddHead() {
    AddNorm("final_norm", Home::Head());
    if (!c_.tied) AddMatrix("head", {c_.vocab, c_.hidden}, VocabSplit(), {Home::Head()});
  }

  const ModelConfig& c_;
  std::vector<vps::KindSpec> kinds_;
  CatalogOptions options_;
  StateCatalog catalog_;
  Status status_;
};

}  // namespace

Result<std::shared_ptr<const StateCatalog>> MakeCatalog(const ModelConfig& config,
                                                        std::vector<vps::KindSpec> kinds,
                                                        const CatalogOptions& options) {
  if (kinds.empty()) return InvalidArgument("model {}: no kinds of state", config.name);
  return CatalogBuilder(config, std::move(kinds), options).Build();
}

int64_t ParameterCount(const StateCatalog& catalog) {
  int64_t count = 0;
  for (const Parameter& p : catalog.parameters()) count += ElemCount(p.shape);
  return count;
}

Status CheckGeometry(const ModelConfig& config, const vps::Layout& layout,
                     const CatalogOptions& options) {
  DT_RETURN_IF_ERROR(layout.Validate(config.layers, std::nullopt));
  const bool divided = options.kv_heads != CatalogOptions::KvHeads::kBalanced;
  const int64_t heads = divided ? config.heads : config.kv_heads;
  if (layout.tp > heads) {
    return InvalidArgument(
        "tp={}: {} {} heads do not split over {} positions; right is tp=1 to tp={}", layout.tp,
        heads, divided ? "query" : "key-value", layout.tp, heads);
  }
  if (const int64_t fits = std::min(config.ffn, config.vocab); layout.tp > fits) {
    return InvalidArgument(
        "tp={}: ffn {} and vocabulary {} do not split over {} positions; right is tp=1 to tp={}",
        layout.tp, config.ffn, config.vocab, layout.tp, fits);
  }
  for (const auto& [axis, degree] : {std::pair("ep", layout.ep), std::pair("etp", layout.etp)}) {
    if (config.experts > 0 || degree == 1) continue;
    return InvalidArgument("{}={}: model {} has no experts; right is {}=1", axis, degree,
                           config.name, axis);
  }
  if (config.experts > 0 && layout.ep > config.experts) {
    return InvalidArgument(
        "ep={}: {} experts do not split over {} positions; right is ep=1 to ep={}", layout.ep,
        config.experts, layout.ep, config.experts);
  }
  if (config.experts > 0 && layout.etp > config.moe_ffn) {
    return InvalidArgument(
        "etp={}: expert ffn {} does not split over {} positions; right is etp=1 to etp={}",
        layout.etp, config.moe_ffn, layout.etp, config.moe_ffn);
  }
  if (layout.num_chunks() > config.layers && layout.vpp == 1) {
    return InvalidArgument("pp={}: {} layers do not fill {} stages; right is pp=1 to pp={}",
                           layout.pp, config.layers, layout.pp, config.layers);
  }
  if (layout.num_chunks() > config.layers) {
    return InvalidArgument(
        "pp={},vpp={}: {} layers do not fill {} chunks; right is pp * vpp of 1 to {}", layout.pp,
        layout.vpp, config.layers, layout.num_chunks(), config.layers);
  }
  for (size_t stage = 0; stage < layout.split.size(); ++stage) {
    if (layout.split[stage] == 0) {
      return InvalidArgument(
          "split: stage {} has no layer; right is at least 1 of the {} layers per stage", stage,
          config.layers);
    }
  }
  return Status::Ok();
}

Status CheckLayout(const ModelConfig& config, const vps::Layout& layout) {
  DT_RETURN_IF_ERROR(CheckGeometry(config, layout));
  if (config.experts > 0 || config.kv_lora_rank > 0 || config.qk_norm) {
    return InvalidArgument("model {}: {} can be planned but not trained here", config.name,
                           config.experts > 0        ? "experts"
                           : config.kv_lora_rank > 0 ? "latent attention"
                                                     : "query and key norms");
  }
  const std::array<std::pair<std::string_view, int32_t>, 4> degrees = {
      {{"cp", layout.cp}, {"ep", layout.ep}, {"etp", layout.etp}, {"vpp", layout.vpp}}};
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) {
      return InvalidArgument("{}={} can be planned but not trained here; right is {}=1", name,
                             degree, name);
    }
  }
  if (layout.zero > 1) {
    return InvalidArgument("zero={} can be planned but not trained here; right is 0 or 1",
                           layout.zero);
  }
  using Cut = vps::BufferRule::Cut;
  const Cut cut = layout.buffer.cut;
  if (cut == Cut::kParam || cut == Cut::kDim0 || cut == Cut::kMegatron) {
    return InvalidArgument(
        "layout {}: zero_order param, dim0 and megatron can be planned but not trained here; right "
        "is contiguous or bucketed",
        layout.ToString());
  }
  return Status::Ok();
}

}  // namespace dynatrain::models
