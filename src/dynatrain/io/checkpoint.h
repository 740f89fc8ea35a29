// Checkpoints: the state of a job on disk, written in one layout and read in any other.
//
//   DIR/step-00000200/checkpoint.json          CheckpointInfo: step, layout, job state
//   DIR/step-00000200/rank-00003.safetensors   flat buffers of rank 3, as 1-D tensors by
//   vps::Buffer::name
//
// A rank saves the buffers in which it is the first holder of something, so replicas are not
// written again. The directory of a step appears by one rename, after all its files are synced: a
// crash leaves the checkpoints before it whole. For reading, a checkpoint is an ExplicitShardMap
// whose ranks are files, and goes through the planner like any other holder of boxes.
#ifndef DYNATRAIN_IO_CHECKPOINT_H_
#define DYNATRAIN_IO_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "dynatrain/base/status.h"
#include "dynatrain/engine/state.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::io {

struct CheckpointInfo {
  int64_t step = 0;
  vps::Layout layout;     // in which it was written
  std::string job_state;  // bytes of the host
  uint64_t catalog_fingerprint = 0;
};

// Every rank of the layout: writes its file of the checkpoint that is being made for `step` under
// `directory`.
Status SaveShards(const std::string& directory, int64_t step, const vps::LayoutShardMap& map,
                  RankId rank, const engine::StateBuffers& state);

// One rank, once all have saved: makes the checkpoint visible, replacing one of the same step.
// Returns its path.
Result<std::string> FinishCheckpoint(const std::string& directory, const CheckpointInfo& info);

// The newest complete checkpoint under `directory`, or `directory` itself if it is one. kNotFound
// if there is none.
Result<std::string> FindCheckpoint(const std::string& directory);

Result<CheckpointInfo> ReadCheckpointInfo(const std::string& path);

// Fills the buffers of `rank` in `map` from the checkpoint at `path`, whatever layout it was
// written in. Fails naming what differs if it is of another model (kInvalidArgument) or files are
// missing or damaged (kNotFound, kDataLoss).
Status LoadState(const std::string& path, const CheckpointInfo& info,
                 const vps::LayoutShardMap& map, RankId rank, engine::StateBuffers* state);

// Writes all buffers of `rank`, replicas too, to directory/rank-<rank>.safetensors, for tools that
// check state. A rank that holds nothing writes nothing.
Status DumpState(const std::string& directory, const vps::ShardMap& map, RankId rank,
                 const engine::StateBuffers& state);

}  // namespace dynatrain::io

#endif  // DYNATRAIN_IO_CHECKPOINT_H_
