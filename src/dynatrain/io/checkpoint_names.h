// How the files of a checkpoint are called; for io's own sources.
#ifndef DYNATRAIN_IO_CHECKPOINT_NAMES_H_
#define DYNATRAIN_IO_CHECKPOINT_NAMES_H_

#include <string>

#include <fmt/format.h>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/io/checkpoint.h"

namespace dynatrain::io {

inline constexpr char kInfoName[] = "checkpoint.json";
inline constexpr char kPartial[] = ".partial";
inline constexpr char kReplaced[] = ".replaced";

inline std::string StepName(int64_t step) { return fmt::format("step-{:08}", step); }
inline std::string FileName(RankId rank) { return fmt::format("rank-{:05}.safetensors", rank); }

// The last file of a checkpoint to be written.
Status WriteCheckpointInfo(const std::string& path, const CheckpointInfo& info);

}  // namespace dynatrain::io

#endif  // DYNATRAIN_IO_CHECKPOINT_NAMES_H_
