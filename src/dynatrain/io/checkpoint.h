// Checkpoints: the state of a job on disk, written in one layout and read in any other.
//
//   DIR/step-00000200/checkpoint.json          CheckpointInfo: step, layout, job state, digests
//   DIR/step-00000200/rank-00003.safetensors   flat buffers of rank 3, as 1-D tensors by
//                                              vps::Buffer::name
//
// A rank saves the buffers in which it is the first holder of something, so replicas are not
// written again. The directory of a step appears by one rename, after all its files are synced: a
// crash leaves the checkpoints before it whole. Every byte is covered by a digest: each tensor by
// an XXH3 (64 bit) of its bytes, checkpoint.json by one of itself, and the logical state as a whole
// by vps/digest.h, the same in every layout. For reading, a checkpoint is an ExplicitShardMap whose
// ranks are files, and goes through the planner like any other holder of boxes.
//
// While a checkpoint is written its directory is called step-N.partial; while one of the same step
// is replaced, the old one is step-N.replaced for a moment. One job at a time saves to a directory.
#ifndef DYNATRAIN_IO_CHECKPOINT_H_
#define DYNATRAIN_IO_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/engine/state.h"
#include "dynatrain/vps/digest.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::io {

// One file of a checkpoint.
struct CheckpointFile {
  std::string name;  // in the checkpoint's directory
  ByteCount bytes = 0;
  std::map<std::string, uint64_t> tensors;  // XXH3 of each tensor's bytes
};

struct CheckpointInfo {
  int64_t step = 0;
  vps::Layout layout;     // in which it was written
  std::string job_state;  // bytes of the host
  uint64_t catalog_fingerprint = 0;
  std::string dtype;  // of the parameters: "fp32", "bf16"
  // What the host says of the run, to be compared when somebody goes on from here.
  std::map<std::string, std::string> run;
  uint64_t digest = 0;                // of the whole logical state
  std::vector<CheckpointFile> files;  // by name
};

// What one rank tells of its part.
struct SavedShards {
  std::optional<CheckpointFile> file;  // none: all that it holds is written by others
  vps::StateDigest digest;             // its contribution
  std::string ToJson() const;
  static Result<SavedShards> FromJson(const std::string& text);
};

// Every rank of the layout: writes its file of the checkpoint that is being made for `step` under
// `directory`. kResourceExhausted if the disk is full.
Result<SavedShards> SaveShards(const std::string& directory, int64_t step,
                               const vps::LayoutShardMap& map, RankId rank,
                               const engine::StateBuffers& state);
// The same for state that need not be in memory as a whole: `buffers` gives a buffer's bytes, valid
// until it is called again, and gives the same if asked again.
Result<SavedShards> SaveShards(const std::string& directory, int64_t step,
                               const vps::LayoutShardMap& map, RankId rank,
                               const vps::BufferReader& buffers);

// One rank, once all have saved: fills in digest and files of `info` from the parts of all, and
// makes the checkpoint visible, replacing one of the same step. Returns its path. kDataLoss if
// replicas of the state differ: such a state is not worth keeping.
Result<std::string> FinishCheckpoint(const std::string& directory, CheckpointInfo* info,
                                     const std::vector<SavedShards>& parts);

// One rank, if some could not save: removes what was written. Older checkpoints stay.
void DropPartial(const std::string& directory, int64_t step);

// Before a job saves to `directory`: removes what an earlier one left half done, and puts a
// checkpoint that was being replaced back in its place. Touches nothing else. Returns what it did,
// a line each.
Result<std::vector<std::string>> RepairCheckpoints(const std::string& directory);

// The newest complete checkpoint under `directory`, or `directory` itself if it is one. kNotFound
// if there is none.
Result<std::string> FindCheckpoint(const std::string& directory);

// kDataLoss, naming the fault, if it is damaged, kInvalidArgument if it is no checkpoint of this
// version.
Result<CheckpointInfo> ReadCheckpointInfo(const std::string& path);
// The text of a checkpoint.json; `name` is its file's, for errors.
Result<CheckpointInfo> ParseCheckpointInfo(std::string_view text, const std::string& name);

// Whether all files are there, as long as they were (kNotFound, kDataLoss).
Status CheckFiles(const std::string& path, const CheckpointInfo& info);

// Fills the buffers of `rank` in `map` from the checkpoint at `path`, whatever layout it was
// written in, and checks the digest of every tensor that it reads. Fails naming what differs if it
// is of another model (kInvalidArgument) or files are missing or damaged (kNotFound, kDataLoss).
Status LoadState(const std::string& path, const CheckpointInfo& info,
                 const vps::LayoutShardMap& map, RankId rank, engine::StateBuffers* state);

// Reads parts of a checkpoint's tensors, whatever layout it was written in, with little memory beside
// the caller's. Not thread-safe.
class CheckpointReader {
 public:
  // kInvalidArgument if the checkpoint is not of this catalog.
  static Result<std::unique_ptr<CheckpointReader>> Open(
      const std::string& path, const CheckpointInfo& info,
      std::shared_ptr<const vps::StateCatalog> catalog);
  virtual ~CheckpointReader() = default;
  // The elements of a box in row-major order to `run`, which has as many bytes. Errors as LoadState.
  virtual Status Read(vps::TensorId tensor, const vps::Box& box, ByteSpan run) = 0;
};

// Writes all buffers of `rank`, replicas too, to directory/rank-<rank>.safetensors, for tools that
// check state. A rank that holds nothing writes nothing.
Status DumpState(const std::string& directory, const vps::ShardMap& map, RankId rank,
                 const engine::StateBuffers& state);

}  // namespace dynatrain::io

#endif  // DYNATRAIN_IO_CHECKPOINT_H_
