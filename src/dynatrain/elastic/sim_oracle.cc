#include "dynatrain/elastic/sim_oracle.h"

#include <utility>

#include "dynatrain/base/hash.h"

namespace dynatrain::elastic {

std::shared_ptr<const vps::StateCatalog> TinyCatalog() {
  static const std::shared_ptr<const vps::StateCatalog> shared = [] {
    auto catalog = std::make_shared<vps::StateCatalog>();
    const auto add = [&catalog](std::string name, vps::Shape shape, vps::Split split,
                                std::vector<vps::Home> homes, bool trainable = true) {
      vps::Parameter parameter{
          std::move(name), shape, std::move(split), std::move(homes), vps::Fp32AdamKinds(),
          trainable,       true};
      if (!trainable) parameter.kinds.resize(1);
      DT_CHECK(catalog->Add(std::move(parameter)).ok());
    };
    add("embedding", {7, 3}, vps::Split::Balanced(0), {vps::Home::Embedding(), vps::Home::Head()});
    for (int32_t layer = 0; layer < 3; ++layer) {
      add(fmt::format("layers.{}.up", layer), {5 + layer, 3}, vps::Split::Balanced(0),
          {vps::Home::Layer(layer)});
      add(fmt::format("layers.{}.down", layer), {3, 5}, vps::Split::Balanced(1),
          {vps::Home::Layer(layer)});
      add(fmt::format("layers.{}.norm", layer), {3}, vps::Split::None(), {vps::Home::Layer(layer)});
    }
    add("rope", {4}, vps::Split::None(), {vps::Home::Layer(1)}, false);
    return catalog;
  }();
  return shared;
}

uint32_t Element(vps::TensorId tensor, int64_t index, int64_t step) {
  return static_cast<uint32_t>(
      Mix64(Mix64(static_cast<uint64_t>(tensor) * 0x10001 + static_cast<uint64_t>(step)) ^
            static_cast<uint64_t>(index)));
}

}  // namespace dynatrain::elastic
