// checkpoint.json and the parts of it that ranks tell.
#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "dynatrain/base/json.h"
#include "dynatrain/io/checkpoint.h"
#include "dynatrain/io/checkpoint_names.h"
#include "dynatrain/io/file.h"

namespace dynatrain::io {
namespace {

using nlohmann::json;

constexpr int kFormatVersion = 2;

// At most what fits an int64_t; no fraction.
int64_t WholeNumber(const json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX) return value.get<int64_t>();
  throw json::other_error::create(501, DumpJson(value) + " is not a whole number of at least 0",
                                  &value);
}

json FileJson(const CheckpointFile& file) {
  json tensors = json::object();
  for (const auto& [name, digest] : file.tensors) tensors[name] = HexText(digest);
  return {{"name", file.name}, {"bytes", file.bytes}, {"tensors", tensors}};
}

CheckpointFile FileFrom(const json& text) {
  CheckpointFile file;
  file.name = text.at("name").get<std::string>();
  file.bytes = WholeNumber(text.at("bytes"));
  for (const auto& [name, digest] : text.at("tensors").items())
    file.tensors[name] = FromHex(digest);
  return file;
}

// Of everything but the digest itself, in the one form that DumpJson has for it.
uint64_t DigestOf(json text) {
  text.erase("xxh3");
  const std::string canonical = DumpJson(text);
  return XXH3_64bits(canonical.data(), canonical.size());
}

Result<CheckpointInfo> Parse(const json& text, const std::string& name) {
  CheckpointInfo info;
  info.step = WholeNumber(text.at("step"));
  DT_ASSIGN_OR_RETURN(info.layout, vps::ParseLayout(text.at("layout").get<std::string>()));
  for (const json& byte : text.at("job_state"))
    info.job_state.push_back(static_cast<char>(WholeNumber(byte) & 0xff));
  info.catalog_fingerprint = FromHex(text.at("catalog_fingerprint"));
  info.dtype = text.at("dtype").get<std::string>();
  info.run = text.at("run").get<std::map<std::string, std::string>>();
  info.digest = FromHex(text.at("digest"));
  for (const json& file : text.at("files")) info.files.push_back(FileFrom(file));
  for (const CheckpointFile& file : info.files) {
    if (file.name.find('/') == std::string::npos) continue;
    return DataLoss("{}: the file name {} leads out of the checkpoint", name, file.name);
  }
  return info;
}

}  // namespace

std::string SavedShards::ToJson() const {
  json text = {{"digest", HexText(digest.digest)}, {"replica", HexText(digest.replica)}};
  if (file) text["file"] = FileJson(*file);
  return DumpJson(text);
}

Result<SavedShards> SavedShards::FromJson(const std::string& text) {
  try {
    DT_ASSIGN_OR_RETURN(const json parsed, ParseJson(text));
    SavedShards part;
    part.digest = {FromHex(parsed.at("digest")), FromHex(parsed.at("replica"))};
    if (parsed.contains("file")) part.file = FileFrom(parsed["file"]);
    return part;
  } catch (const json::exception& error) {
    return Internal("what a rank saved cannot be read: {}: {}", error.what(), text);
  }
}

Status WriteCheckpointInfo(const std::string& path, const CheckpointInfo& info) {
  json files = json::array();
  for (const CheckpointFile& file : info.files) files.push_back(FileJson(file));
  json text = {{"format", kFormatVersion},
               {"step", info.step},
               {"layout", info.layout.ToString()},
               {"job_state", std::vector<uint8_t>(info.job_state.begin(), info.job_state.end())},
               {"catalog_fingerprint", HexText(info.catalog_fingerprint)},
               {"dtype", info.dtype},
               {"run", info.run},
               {"digest", HexText(info.digest)},
               {"files", files}};
  text["xxh3"] = HexText(DigestOf(text));
  return WriteFileAtomically(path + "/" + kInfoName, DumpJson(text, 1));
}

Result<CheckpointInfo> ReadCheckpointInfo(const std::string& path) {
  const std::string name = path + "/" + kInfoName;
  DT_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(name));
  return ParseCheckpointInfo(file.text(), name);
}

Result<CheckpointInfo> ParseCheckpointInfo(std::string_view file, const std::string& name) {
  const Result<json> parsed = ParseJson(file);
  if (!parsed.ok()) return DataLoss("{} is damaged: {}", name, parsed.status().message());
  try {
    const json& text = *parsed;
    if (text.at("format") != kFormatVersion) {
      return InvalidArgument("{}: format {}, this version reads {}", name,
                             DumpJson(text.at("format")), kFormatVersion);
    }
    if (FromHex(text.at("xxh3")) != DigestOf(text)) {
      return DataLoss("{} is damaged: it is not what was written, its digest differs", name);
    }
    return Parse(text, name);
  } catch (const json::exception& error) {
    return DataLoss("{} is damaged: {}", name, error.what());
  }
}

}  // namespace dynatrain::io
