#include "dynatrain/io/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "dynatrain/engine/copy.h"
#include "dynatrain/io/checkpoint_names.h"
#include "dynatrain/io/file.h"
#include "dynatrain/io/safetensors.h"
#include "dynatrain/planner/route.h"

namespace dynatrain::io {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = size_t{4} << 20;

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

// The file of `name` as the info describes it; null if it does not.
const CheckpointFile* Described(const CheckpointInfo& info, const std::string& name) {
  const auto at = std::ranges::find(info.files, name, &CheckpointFile::name);
  return at == info.files.end() ? nullptr : &*at;
}

uint64_t DigestOf(ConstByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

// The same of a part of a mapped file, without keeping it in memory.
uint64_t DigestOfFile(ConstByteSpan bytes) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (ConstByteSpan left = bytes; !left.empty();) {
    const ConstByteSpan chunk = left.first(std::min(left.size(), kChunkBytes));
    XXH3_64bits_update(&state, chunk.data(), chunk.size());
    MappedFile::Forget(chunk);
    left = left.subspan(chunk.size());
  }
  return XXH3_64bits_digest(&state);
}

// The files of a checkpoint that one reader needs, opened as it needs them, each buffer checked
// against its digest before its first use.
class Files {
 public:
  Files(std::string path, const CheckpointInfo& info, const vps::ShardMap& map, RankId file_base)
      : path_(std::move(path)), info_(info), map_(map), file_base_(file_base) {}

  Status CopyPiece(const planner::Piece& piece, RankId from, const engine::Region& to,
                   ByteSpan to_buffer) {
    DT_ASSIGN_OR_RETURN(File * file, Open(from));
    DT_ASSIGN_OR_RETURN(const engine::Region region,
                        engine::RegionOf(piece, file->shards, file->buffers));
    DT_ASSIGN_OR_RETURN(const ConstByteSpan bytes, BytesOf(file, region.buffer));
    engine::CopyRegion(bytes, region, to_buffer, to);
    MappedFile::Forget(bytes);
    return {};
  }

 private:
  struct File {
    std::string name;
    const CheckpointFile* described = nullptr;
    std::optional<SafetensorsFile> content;
    std::vector<vps::Buffer> buffers;
    std::vector<vps::Shard> shards;
    std::map<vps::BufferIndex, ConstByteSpan> checked;
  };

  // The file that stands for `rank` in the map.
  Result<File*> Open(RankId rank) {
    File& file = files_[rank];
    if (file.content) return &file;
    const std::string name = FileName(rank - file_base_);
    file.name = path_ + "/" + name;
    file.described = Described(info_, name);
    if (file.described == nullptr) {
      return DataLoss("{}/{} does not tell of {}", path_, kInfoName, name);
    }
    DT_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::Open(file.name));
    file.buffers = map_.BuffersOf(rank);
    file.shards = map_.ShardsOf(rank);
    file.content = std::move(opened);
    return &file;
  }

  Result<ConstByteSpan> BytesOf(File* file, vps::BufferIndex index) const {
    if (const auto at = file->checked.find(index); at != file->checked.end()) return at->second;
    const vps::Buffer& buffer = file->buffers[static_cast<size_t>(index)];
    DT_ASSIGN_OR_RETURN(const TensorView view, file->content->Find(buffer.name));
    if (view.dtype != buffer.dtype || view.shape != std::vector<int64_t>{buffer.elems}) {
      return DataLoss("{}: {} is not {} elements of {}", file->name, buffer.name, buffer.elems,
                      vps::DTypeName(buffer.dtype));
    }
    const auto saved = file->described->tensors.find(buffer.name);
    const uint64_t digest = DigestOfFile(view.data);
    if (saved == file->described->tensors.end() || saved->second != digest) {
      return DataLoss("{}: {} is damaged: it has changed since it was saved", file->name,
                      buffer.name);
    }
    return file->checked[index] = view.data;
  }

  const std::string path_;
  const CheckpointInfo& info_;
  const vps::ShardMap& map_;
  const RankId file_base_;  // the rank that stands for the file of rank 0
  std::map<RankId, File> files_;
};

// The checkpoint as a shard map, each file a rank from `file_base` on.
Result<std::shared_ptr<const vps::ExplicitShardMap>> FilesMap(
    const std::string& path, const CheckpointInfo& info,
    const std::shared_ptr<const vps::StateCatalog>& catalog, RankId file_base) {
  if (info.catalog_fingerprint != catalog->Fingerprint()) {
    return InvalidArgument(
        "{} holds the state of another model, dtype or optimizer than this job's", path);
  }
  DT_ASSIGN_OR_RETURN(const auto written, vps::LayoutShardMap::Make(catalog, info.layout));
  std::vector<vps::ExplicitShardMap::Holding> holdings;
  for (const RankId writer : written->Ranks()) {
    holdings.push_back(SavedPart(*written, writer));
    holdings.back().rank += file_base;
  }
  return vps::ExplicitShardMap::Make(catalog, std::move(holdings));
}

class Reader final : public CheckpointReader {
 public:
  Reader(const std::string& path, CheckpointInfo info,
         std::shared_ptr<const vps::ExplicitShardMap> map)
      : info_(std::move(info)), map_(std::move(map)), files_(path, info_, *map_, 0) {}

  Status Read(vps::TensorId tensor, const vps::Box& box, ByteSpan run) override {
    const vps::StateTensor& about = map_->catalog().tensor(tensor);
    const std::vector<vps::Buffer> buffers = {{"", about.kind, about.dtype, box.elems()}};
    DT_CHECK(static_cast<ByteCount>(run.size()) == buffers[0].bytes());
    const std::vector<vps::Shard> shards = {{tensor, box, 0, 0, vps::RowMajorStrides(box.shape())}};
    Status status;
    map_->VisitHolders(tensor, box, [&](const vps::Box& part, const vps::HolderSet& holders) {
      if (!status.ok()) return;
      const Result<engine::Region> to = engine::RegionOf({tensor, part}, shards, buffers);
      status = to.ok() ? files_.CopyPiece({tensor, part}, holders.At(0), *to, run) : to.status();
    });
    return status;
  }

 private:
  const CheckpointInfo info_;
  const std::shared_ptr<const vps::ExplicitShardMap> map_;
  Files files_;
};

}  // namespace

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    const std::string& path, const CheckpointInfo& info,
    std::shared_ptr<const vps::StateCatalog> catalog) {
  DT_ASSIGN_OR_RETURN(auto map, FilesMap(path, info, catalog, 0));
  return std::unique_ptr<CheckpointReader>(std::make_unique<Reader>(path, info, std::move(map)));
}

Result<SavedShards> SaveShards(const std::string& directory, int64_t step,
                               const vps::LayoutShardMap& map, RankId rank,
                               const engine::StateBuffers& state) {
  return SaveShards(directory, step, map, rank,
                    [&state](vps::BufferIndex index) { return state.bytes(index); });
}

Result<SavedShards> SaveShards(const std::string& directory, int64_t step,
                               const vps::LayoutShardMap& map, RankId rank,
                               const vps::BufferReader& buffers) {
  SavedShards saved;
  saved.digest = vps::DigestOfRank(map, rank, buffers, static_cast<uint64_t>(step));
  const std::string partial = directory + "/" + StepName(step) + kPartial;
  DT_RETURN_IF_ERROR(MakeDirectories(partial));
  const vps::ExplicitShardMap::Holding part = SavedPart(map, rank);
  if (part.buffers.empty()) return saved;
  CheckpointFile file{.name = FileName(rank), .bytes = 0, .tensors = {}};
  std::vector<TensorSpec> specs;
  for (const vps::Buffer& buffer : part.buffers) {
    specs.push_back({buffer.name, buffer.dtype, {buffer.elems}});
  }
  const std::string path = partial + "/" + file.name;
  DT_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(path, specs,
                                {{"step", std::to_string(step)}, {"rank", std::to_string(rank)}}));
  const std::vector<vps::Buffer> all = map.BuffersOf(rank);
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::find(part.buffers, all[i].name, &vps::Buffer::name) == part.buffers.end())
      continue;
    const ConstByteSpan bytes = buffers(static_cast<vps::BufferIndex>(i));
    file.tensors[all[i].name] = DigestOf(bytes);
    DT_RETURN_IF_ERROR(writer.Append(bytes));
  }
  DT_RETURN_IF_ERROR(writer.Finish());
  std::error_code error;
  file.bytes = static_cast<ByteCount>(fs::file_size(path, error));
  if (error) return Unavailable("{}: {}", path, error.message());
  saved.file = std::move(file);
  return saved;
}

Status LoadState(const std::string& path, const CheckpointInfo& info,
                 const vps::LayoutShardMap& map, RankId rank, engine::StateBuffers* state) {
  // Files are no ranks of this job: their numbers begin after all of them.
  const RankId file_base = 1 + std::ranges::max(map.Ranks());
  DT_ASSIGN_OR_RETURN(const auto files_map, FilesMap(path, info, map.shared_catalog(), file_base));
  DT_ASSIGN_OR_RETURN(const planner::Route route,
                      planner::PlanRoute(*files_map, map, planner::Topology{}, rank));

  Files files(path, info, *files_map, file_base);
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
