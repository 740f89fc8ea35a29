// Any bytes as a config.json: refused, or a model whose catalog is refused or whole.
#include <cstdint>

#include "dynatrain/base/check.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/models/config.h"
#include "dynatrain/vps/shard_map.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dynatrain;
  const auto config =
      models::ParseConfig(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) {
    DT_CHECK(!config.status().message().empty());
    return 0;
  }
  DT_CHECK(config->layers >= 1 && config->heads % config->kv_heads == 0);
  if (config->layers > 64 || config->experts > 64) return 0;
  for (const bool stacks : {true, false}) {
    const auto catalog =
        models::MakeCatalog(*config, vps::Bf16AdamKinds(), {.expert_stacks = stacks});
    if (!catalog.ok()) return 0;
    DT_CHECK(models::ParameterCount(**catalog) > 0);
    const auto layout = *vps::ParseLayout("tp=2,dp=3,zero=1");
    const Status fits = models::CheckGeometry(*config, layout);
    const auto map = vps::LayoutShardMap::Make(*catalog, layout);
    DT_CHECK(!map.ok() || (*map)->catalog().total_bytes() > 0);
    DT_CHECK(fits.ok() || !fits.message().empty());
  }
  return 0;
}
