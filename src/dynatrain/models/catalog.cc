#include "dynatrain/models/catalog.h"

#include <algorithm>

namespace dynatrain::models {

namespace {

using vps::Home;
using vps::Parameter;
using vps::Shape;
using vps::Split;
using vps::StateCatalog;

class CatalogBuilder {
 public:
  CatalogBuilder(const ModelConfig& config, std::vector<vps::KindSpec> kinds)
      : c_(config), kinds_(std::move(kinds)) {}

  Result<std::shared_ptr<const StateCatalog>> Build() {
    AddEmbedding();
    for (int32_t layer = 0; layer < c_.layers; ++layer) AddLayer(layer);
    AddHead();
    DT_RETURN_IF_ERROR(status_);
    return std::shared_ptr<const StateCatalog>(std::make_shared<StateCatalog>(std::move(catalog_)));
  }

 private:
  bool gpt() const { return c_.family == ModelConfig::Family::kGpt; }

  void Add(std::string name, const Shape& shape, Split split, std::vector<Home> homes,
           bool weight_decay) {
    if (!status_.ok()) return;
    status_ = catalog_.Add({.name = std::move(name),
                            .shape = shape,
                            .split = std::move(split),
                            .homes = std::move(homes),
                            .kinds = kinds_,
                            .trainable = true,
                            .weight_decay = weight_decay});
  }
  void AddMatrix(const std::string& name, const Shape& shape, int axis,
                 const std::vector<Home>& homes) {
    Add(name + ".weight", shape, axis < 0 ? Split::None() : Split::Balanced(axis), homes, true);
  }
  void AddBias(const std::string& name, const Shape& shape, int axis, const Home& home) {
    Add(name + ".bias", shape, axis < 0 ? Split::None() : Split::Balanced(axis), {home}, false);
  }
  void AddNorm(const std::string& name, const Home& home) {
    Add(name + ".weight", {c_.hidden}, Split::None(), {home}, false);
    if (gpt()) AddBias(name, {c_.hidden}, -1, home);
  }

  void AddEmbedding() {
    std::vector<Home> homes = {Home::Embedding()};
    if (c_.tied) homes.push_back(Home::Head());
    AddMatrix("embedding", {c_.vocab, c_.hidden}, 0, homes);
    if (gpt())
      AddMatrix("embedding.position", {c_.max_positions, c_.hidden}, -1, {Home::Embedding()});
  }
  void AddLayer(int32_t layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    const Home home = Home::Layer(layer);
    AddNorm(prefix + "input_norm", home);
    AddMatrix(prefix + "attn.qkv", {c_.kv_heads, c_.q_per_kv() + 2, c_.head_dim, c_.hidden}, 0,
              {home});
    if (c_.qkv_bias)
      AddBias(prefix + "attn.qkv", {c_.kv_heads, c_.q_per_kv() + 2, c_.head_dim}, 0, home);
    AddMatrix(prefix + "attn.out", {c_.hidden, c_.kv_heads, c_.q_per_kv(), c_.head_dim}, 1, {home});
    if (c_.out_bias) AddBias(prefix + "attn.out", {c_.hidden}, -1, home);
    AddNorm(prefix + "post_norm", home);
    if (gpt()) {
      AddMatrix(prefix + "mlp.up", {c_.ffn, c_.hidden}, 0, {home});
      if (c_.mlp_bias) AddBias(prefix + "mlp.up", {c_.ffn}, 0, home);
    } else {
      AddMatrix(prefix + "mlp.gate_up", {2, c_.ffn, c_.hidden}, 1, {home});
      if (c_.mlp_bias) AddBias(prefix + "mlp.gate_up", {2, c_.ffn}, 1, home);
    }
    AddMatrix(prefix + "mlp.down", {c_.hidden, c_.ffn}, 1, {home});
    if (c_.mlp_bias) AddBias(prefix + "mlp.down", {c_.hidden}, -1, home);
  }
  void AddHead() {
    AddNorm("final_norm", Home::Head());
    if (!c_.tied) AddMatrix("head", {c_.vocab, c_.hidden}, 0, {Home::Head()});
  }

  const ModelConfig& c_;
  std::vector<vps::KindSpec> kinds_;
  StateCatalog catalog_;
  Status status_;
};

}  // namespace

Result<std::shared_ptr<const StateCatalog>> MakeCatalog(const ModelConfig& config,
                                                        std::vector<vps::KindSpec> kinds) {
  return CatalogBuilder(config, std::move(kinds)).Build();
}

int64_t ParameterCount(const StateCatalog& catalog) {
  int64_t count = 0;
  for (const Parameter& p : catalog.parameters()) count += ElemCount(p.shape);
  return count;
}

Status CheckLayout(const ModelConfig& config, const vps::Layout& layout) {
  DT_RETURN_IF_ERROR(layout.Validate(config.layers, std::nullopt));
  if (layout.tp > config.kv_heads) {
    return InvalidArgument(
        "tp={}: {} key-value heads do not split over {} positions; right is tp=1 to tp={}",
        layout.tp, config.kv_heads, layout.tp, config.kv_heads);
  }
  if (const int64_t fits = std::min(config.ffn, config.vocab); layout.tp > fits) {
    return InvalidArgument(
        "tp={}: ffn {} and vocabulary {} do not split over {} positions; right is tp=1 to tp={}",
        layout.tp, config.ffn, config.vocab, layout.tp, fits);
  }
  if (layout.pp > config.layers) {
    return InvalidArgument("pp={}: {} layers do not fill {} stages; right is pp=1 to pp={}",
                           layout.pp, config.layers, layout.pp, config.layers);
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

}  // namespace dynatrain::models
