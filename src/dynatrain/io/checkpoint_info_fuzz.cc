// Any bytes as a checkpoint.json, which says in which layout state lies on disk, and as what a rank
// tells of its file: refused, or something valid.
#include <cstdint>

#include "dynatrain/base/check.h"
#include "dynatrain/io/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dynatrain;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto info = io::ParseCheckpointInfo(text, "checkpoint.json");
  if (info.ok()) {
    DT_CHECK(info->layout.ValidateRanks(std::nullopt).ok());
    DT_CHECK(info->step >= 0);
  }
  const auto part = io::SavedShards::FromJson(std::string(text));
  if (part.ok()) {
    const auto again = io::SavedShards::FromJson(part->ToJson());
    DT_CHECK(again.ok() && again->digest == part->digest);
    DT_CHECK(again->file.has_value() == part->file.has_value());
    DT_CHECK(!part->file || part->file->bytes >= 0);
  }
  return 0;
}
