#include "dynatrain/io/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "dynatrain/engine/copy.h"
#include "dynatrain/io/file.h"
#include "dynatrain/io/safetensors.h"
#include "dynatrain/planner/route.h"

namespace dynatrain::io {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr char kInfoName[] = "checkpoint.json";
constexpr char kPartial[] = ".partial";
constexpr int kFormatVersion = 1;

std::string StepName(int64_t step) { return fmt::format("step-{:08}", step); }
std::string FileName(RankId rank) { return fmt::format("rank-{:05}.safetensors", rank); }

Status MakeDirectories(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return {};
  return Unavailable("cannot make the directory {}: {}", path, error.message());
}

// What one rank holds of a map, reduced to the buffers in which it is the first holder of
// something: the content of its file. Buffers are renumbered.
vps::ExplicitShardMap::Holding SavedPart(const vps::ShardMap& map, RankId rank) {
  const std::vector<vps::Buffer> buffers = map.BuffersOf(rank);
  const std::vector<vps::Shard> shards = map.ShardsOf(rank);
  std::vector<bool> wanted(buffers.size(), false);
  for (const vps::Shard& shard : shards) {
    map.VisitHolders(shard.tensor, shard.box, [&](const vps::Box&, const vps::HolderSet& holders) {
      if (holders.At(0) == rank) wanted[static_cast<size_t>(shard.buffer)] = true;
    });
  }
  vps::ExplicitShardMap::Holding part{.rank = rank, .buffers = {}, .shards = {}};
  std::vector<vps::BufferIndex> renumbered(buffers.size(), -1);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!wanted[i]) continue;
    renumbered[i] = static_cast<vps::BufferIndex>(part.buffers.size());
    part.buffers.push_back(buffers[i]);
  }
  for (vps::Shard shard : shards) {
    shard.buffer = renumbered[static_cast<size_t>(shard.buffer)];
    if (shard.buffer >= 0) part.shards.push_back(std::move(shard));
  }
  return part;
}

TensorView ViewOf(const engine::StateBuffers& state, vps::BufferIndex index) {
  const vps::Buffer& buffer = state.buffer(index);
  return {buffer.name, buffer.dtype, {buffer.elems}, state.bytes(index)};
}

// The files of a checkpoint that one reader needs, opened as it needs them.
class Files {
 public:
  Files(std::string path, const vps::ShardMap& map, RankId file_base)
      : path_(std::move(path)), map_(map), file_base_(file_base) {}

  Status CopyPiece(const planner::Piece& piece, RankId from, const engine::Region& to,
                   ByteSpan to_buffer) {
    DT_ASSIGN_OR_RETURN(const File* file, Open(from));
    DT_ASSIGN_OR_RETURN(const engine::Region region,
                        engine::RegionOf(piece, file->shards, file->buffers));
    engine::CopyRegion(file->bytes[static_cast<size_t>(region.buffer)], region, to_buffer, to);
    return {};
  }

 private:
  struct File {
    std::optional<SafetensorsFile> content;
    std::vector<vps::Buffer> buffers;
    std::vector<vps::Shard> shards;
    std::vector<ConstByteSpan> bytes;  // by buffer
  };

  // The file that stands for `rank` in the map, with every buffer found and of the length that the
  // map says.
  Result<const File*> Open(RankId rank) {
    File& file = files_[rank];
    if (file.content) return &file;
    const std::string name = path_ + "/" + FileName(rank - file_base_);
    DT_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::Open(name));
    file.buffers = map_.BuffersOf(rank);
    file.shards = map_.ShardsOf(rank);
    for (const vps::Buffer& buffer : file.buffers) {
      DT_ASSIGN_OR_RETURN(const TensorView view, opened.Find(buffer.name));
      if (view.dtype != buffer.dtype || view.shape != std::vector<int64_t>{buffer.elems}) {
        return DataLoss("{}: {} is not {} elements of {}", name, buffer.name, buffer.elems,
                        vps::DTypeName(buffer.dtype));
      }
      file.bytes.push_back(view.data);
    }
    file.content = std::move(opened);
    return &file;
  }

  const std::string path_;
  const vps::ShardMap& map_;
  const RankId file_base_;  // the rank that stands for the file of rank 0
  std::map<RankId, File> files_;
};

}  // namespace

Status SaveShards(const std::string& directory, int64_t step, const vps::LayoutShardMap& map,
                  RankId rank, const engine::StateBuffers& state) {
  const std::string partial = directory + "/" + StepName(step) + kPartial;
  DT_RETURN_IF_ERROR(MakeDirectories(partial));
  const vps::ExplicitShardMap::Holding part = SavedPart(map, rank);
  if (part.buffers.empty()) return {};
  std::vector<TensorView> tensors;
  for (vps::BufferIndex i = 0; i < state.num_buffers(); ++i) {
    if (std::ranges::find(part.buffers, state.buffer(i).name, &vps::Buffer::name) !=
        part.buffers.end()) {
      tensors.push_back(ViewOf(state, i));
    }
  }
  return WriteSafetensors(partial + "/" + FileName(rank), tensors,
                          {{"step", std::to_string(step)}, {"rank", std::to_string(rank)}});
}

Result<std::string> FinishCheckpoint(const std::string& directory, const CheckpointInfo& info) {
  const std::string path = directory + "/" + StepName(info.step);
  const std::string partial = path + kPartial;
  const json text = {
      {"format", kFormatVersion},
      {"step", info.step},
      {"layout", info.layout.ToString()},
      {"job_state", std::vector<uint8_t>(info.job_state.begin(), info.job_state.end())},
      {"catalog_fingerprint", info.catalog_fingerprint}};
  DT_RETURN_IF_ERROR(WriteFileAtomically(partial + "/" + kInfoName, text.dump(1)));
  DT_RETURN_IF_ERROR(SyncDirectory(partial));
  std::error_code error;
  if (fs::exists(path, error)) fs::rename(path, path + ".replaced", error);
  if (!error) fs::rename(partial, path, error);
  if (error) return Unavailable("cannot make the checkpoint {} visible: {}", path, error.message());
  fs::remove_all(path + ".replaced", error);
  DT_RETURN_IF_ERROR(SyncDirectory(directory));
  return path;
}

Result<std::string> FindCheckpoint(const std::string& directory) {
  std::error_code error;
  if (fs::exists(directory + "/" + kInfoName, error)) return directory;
  std::string newest;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    const bool complete = name.starts_with("step-") && entry->path().extension().empty() &&
                          fs::exists(entry->path() / kInfoName, error);
    if (complete) newest = std::max(newest, name);
  }
  if (error) return NotFound("cannot look for a checkpoint in {}: {}", directory, error.message());
  if (newest.empty()) return NotFound("no complete checkpoint in {}", directory);
  return directory + "/" + newest;
}

Result<CheckpointInfo> ReadCheckpointInfo(const std::string& path) {
  const std::string name = path + "/" + kInfoName;
  DT_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(name));
  try {
    const json text = json::parse(file.text());
    if (text.at("format").get<int>() != kFormatVersion) {
      return InvalidArgument("{}: format {}, this version reads {}", name, text.at("format").dump(),
                             kFormatVersion);
    }
    CheckpointInfo info;
    info.step = text.at("step").get<int64_t>();
    DT_ASSIGN_OR_RETURN(info.layout, vps::ParseLayout(text.at("layout").get<std::string>()));
    for (const json& byte : text.at("job_state"))
      info.job_state.push_back(static_cast<char>(byte.get<uint8_t>()));
    info.catalog_fingerprint = text.at("catalog_fingerprint").get<uint64_t>();
    return info;
  } catch (const json::exception& error) {
    return DataLoss("{} is damaged: {}", name, error.what());
  }
}

Status LoadState(const std::string& path, const CheckpointInfo& info,
                 const vps::LayoutShardMap& map, RankId rank, engine::StateBuffers* state) {
  if (info.catalog_fingerprint != map.catalog().Fingerprint()) {
    return InvalidArgument(
        "{} holds the state of another model, dtype or optimizer than this job's", path);
  }
  DT_ASSIGN_OR_RETURN(const auto written,
                      vps::LayoutShardMap::Make(map.shared_catalog(), info.layout));
  // Files are no ranks of this job: their numbers begin after all of them.
  const RankId file_base = 1 + std::ranges::max(map.Ranks());
  std::vector<vps::ExplicitShardMap::Holding> holdings;
  for (const RankId writer : written->Ranks()) {
    holdings.push_back(SavedPart(*written, writer));
    holdings.back().rank += file_base;
  }
  DT_ASSIGN_OR_RETURN(const auto files_map,
                      vps::ExplicitShardMap::Make(map.shared_catalog(), std::move(holdings)));
  DT_ASSIGN_OR_RETURN(const planner::Route route,
                      planner::PlanRoute(*files_map, map, planner::Topology{}, rank));

  Files files(path, *files_map, file_base);
  const std::vector<vps::Shard> shards = map.ShardsOf(rank);
  const std::vector<vps::Buffer> buffers = map.BuffersOf(rank);
  for (const planner::Transfer& transfer : route.receives) {
    DT_ASSIGN_OR_RETURN(const engine::Region to, engine::RegionOf(transfer.piece, shards, buffers));
    DT_RETURN_IF_ERROR(files.CopyPiece(transfer.piece, transfer.peer, to, state->bytes(to.buffer)));
  }
  return {};
}

Status DumpState(const std::string& directory, const vps::ShardMap& map, RankId rank,
                 const engine::StateBuffers& state) {
  DT_RETURN_IF_ERROR(MakeDirectories(directory));
  if (map.BuffersOf(rank).empty()) return {};
  std::vector<TensorView> tensors;
  for (vps::BufferIndex i = 0; i < state.num_buffers(); ++i) tensors.push_back(ViewOf(state, i));
  return WriteSafetensors(fmt::format("{}/rank-{}.safetensors", directory, rank), tensors,
                          {{"rank", std::to_string(rank)}});
}

}  // namespace dynatrain::io
