// Any bytes as a SPEC: refused, or a layout that prints back to itself and whose map covers a small
// catalog.
#include <cstdint>
#include <memory>

#include "dynatrain/base/check.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {
namespace {

std::shared_ptr<const StateCatalog> SmallCatalog() {
  auto catalog = std::make_shared<StateCatalog>();
  const auto add = [&](Parameter p) {
    p.kinds = Bf16AdamKinds();
    DT_CHECK(catalog->Add(std::move(p)).ok());
  };
  add({.name = "embedding",
       .shape = {11, 3},
       .split = Split::Padded(4),
       .homes = {Home::Embedding(), Home::Head()}});
  for (int32_t layer = 0; layer < 5; ++layer) {
    add({.name = fmt::format("layers.{}.qkv", layer),
         .shape = {3, 4, 2},
         .split = Split::Groups(0, 2),
         .homes = {Home::Layer(layer)},
         .row_axes = 2});
    add({.name = fmt::format("layers.{}.experts", layer),
         .shape = {4, 5},
         .split = Split::Balanced(1),
         .homes = {Home::Layer(layer)},
         .experts = Experts::Stack(0)});
  }
  return catalog;
}

// Every element has a holder that says so too.
void CheckMap(const Layout& layout) {
  static const std::shared_ptr<const StateCatalog> catalog = SmallCatalog();
  const auto map = LayoutShardMap::Make(catalog, layout);
  if (!map.ok()) return;
  for (const StateTensor& tensor : catalog->tensors()) {
    const Box whole = Box::Whole(catalog->shape_of(tensor.id));
    int64_t covered = 0;
    (*map)->VisitHolders(tensor.id, whole, [&](const Box& part, const HolderSet& holders) {
      covered += part.elems();
      DT_CHECK(holders.size() > 0 && layout.PositionOfRank(holders.At(0)));
    });
    DT_CHECK(covered == whole.elems());
  }
  for (const RankId rank : {layout.RankAt(0), layout.RankAt(layout.world_size() - 1)}) {
    const std::vector<Buffer> buffers = (*map)->BuffersOf(rank);
    for (const Shard& shard : (*map)->ShardsOf(rank)) {
      const Buffer& buffer = buffers.at(static_cast<size_t>(shard.buffer));
      DT_CHECK(shard.offset >= 0 && shard.offset + shard.box.elems() <= buffer.elems);
    }
  }
}

}  // namespace
}  // namespace dynatrain::vps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using dynatrain::vps::ParseLayout;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto bounded = ParseLayout(text, 48);
  const auto layout = ParseLayout(text);
  // A bound on the ranks can only refuse more, or fill in dp.
  DT_CHECK(!bounded.ok() || bounded->world_size() <= 48);
  if (!layout.ok()) return 0;
  const auto again = ParseLayout(layout->ToString());
  DT_CHECK_MSG(again.ok(), layout->ToString());
  DT_CHECK_MSG(*again == *layout, layout->ToString());
  DT_CHECK(again->Fingerprint() == layout->Fingerprint());
  if (layout->world_size() <= 512 && layout->num_chunks() <= 512) {
    for (int32_t p = 0; p < layout->world_size(); ++p) {
      DT_CHECK(layout->PositionOf(layout->RoleAt(p)) == p);
      const auto role = layout->ExpertRoleAt(p);
      DT_CHECK(role.pp == layout->RoleAt(p).pp);
    }
    dynatrain::vps::CheckMap(*layout);
  }
  return 0;
}
