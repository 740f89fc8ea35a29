// The directory of checkpoints: what appears in it when, and what is found there.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "dynatrain/io/checkpoint.h"
#include "dynatrain/io/checkpoint_names.h"
#include "dynatrain/io/file.h"

namespace dynatrain::io {
namespace {

namespace fs = std::filesystem;

// "step-00000200", perhaps with ".partial" or ".replaced".
struct StepEntry {
  int64_t step = 0;
  std::string suffix;
};

std::optional<StepEntry> ParseName(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  StepEntry entry;
  const char* begin = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), entry.step);
  if (error != std::errc() || entry.step < 0) return std::nullopt;
  entry.suffix = std::string(end, name.data() + name.size());
  const bool ours = StepName(entry.step) + entry.suffix == name;
  return ours ? std::optional(entry) : std::nullopt;
}

bool IsComplete(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kInfoName, ignored);
}

// Names in `directory`; empty if there is no such directory.
Result<std::vector<std::string>> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  if (error) return NotFound("cannot look for checkpoints in {}: {}", directory, error.message());
  std::ranges::sort(names);
  return names;
}

// A file of a job that crashed may lie in the directory that is about to become a checkpoint.
Status RemoveStrangers(const std::string& partial, const CheckpointInfo& info) {
  std::set<std::string> known = {kInfoName};
  for (const CheckpointFile& file : info.files) known.insert(file.name);
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(partial));
  for (const std::string& name : names) {
    std::error_code error;
    if (!known.contains(name)) fs::remove_all(partial + "/" + name, error);
    if (error) return Unavailable("cannot remove {}/{}: {}", partial, name, error.message());
  }
  return {};
}

Status CollectParts(const std::vector<SavedShards>& parts, CheckpointInfo* info) {
  vps::StateDigest sum;
  info->files.clear();
  for (const SavedShards& part : parts) {
    sum = vps::Combine(sum, part.digest);
    if (part.file) info->files.push_back(*part.file);
  }
  std::ranges::sort(info->files, {}, &CheckpointFile::name);
  info->digest = sum.digest;
  if (sum.replica == 0) return {};
  return DataLoss("step {}: the replicas of the state differ between ranks; it was not saved",
                  info->step);
}

}  // namespace

Result<std::string> FinishCheckpoint(const std::string& directory, CheckpointInfo* info,
                                     const std::vector<SavedShards>& parts) {
  const std::string path = directory + "/" + StepName(info->step);
  const std::string partial = path + kPartial;
  DT_RETURN_IF_ERROR(CollectParts(parts, info));
  DT_RETURN_IF_ERROR(RemoveStrangers(partial, *info));
  DT_RETURN_IF_ERROR(WriteCheckpointInfo(partial, *info));
  DT_RETURN_IF_ERROR(SyncDirectory(partial));
  const std::string replaced = path + kReplaced;
  std::error_code error;
  if (fs::exists(path, error)) {
    fs::remove_all(replaced, error);
    if (!error) fs::rename(path, replaced, error);
  }
  if (!error) fs::rename(partial, path, error);
  if (error) return Unavailable("cannot make the checkpoint {} visible: {}", path, error.message());
  DT_RETURN_IF_ERROR(SyncDirectory(directory));
  fs::remove_all(replaced, error);
  return path;
}

void DropPartial(const std::string& directory, int64_t step) {
  std::error_code ignored;
  fs::remove_all(directory + "/" + StepName(step) + kPartial, ignored);
}

Result<std::vector<std::string>> RepairCheckpoints(const std::string& directory) {
  std::vector<std::string> done;
  std::error_code error;
  if (!fs::exists(directory, error)) return done;
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  for (const std::string& name : names) {
    const std::optional<StepEntry> entry = ParseName(name);
    if (!entry) continue;
    const fs::path path = fs::path(directory) / name;
    const fs::path whole = fs::path(directory) / StepName(entry->step);
    if (entry->suffix == kReplaced && IsComplete(path) && !IsComplete(whole)) {
      fs::remove_all(whole, error);
      if (!error) fs::rename(path, whole, error);
      done.push_back(fmt::format("put {} back, which was being replaced", whole.string()));
    } else if (entry->suffix == kReplaced || entry->suffix == kPartial) {
      fs::remove_all(path, error);
      done.push_back(fmt::format("removed {}, which was left half done", path.string()));
    }
    if (error) return Unavailable("cannot repair {}: {}", path.string(), error.message());
  }
  return done;
}

Result<std::string> FindCheckpoint(const std::string& directory) {
  if (IsComplete(directory)) return directory;
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  // Of one step, the checkpoint itself before one that was being replaced.
  std::pair<int64_t, bool> best{-1, false};
  std::string found;
  for (const std::string& name : names) {
    const std::optional<StepEntry> entry = ParseName(name);
    if (!entry || (!entry->suffix.empty() && entry->suffix != kReplaced)) continue;
    const std::pair rank{entry->step, entry->suffix.empty()};
    if (rank <= best || !IsComplete(fs::path(directory) / name)) continue;
    best = rank;
    found = directory + "/" + name;
  }
  if (found.empty()) return NotFound("no complete checkpoint in {}", directory);
  return found;
}

Status CheckFiles(const std::string& path, const CheckpointInfo& info) {
  for (const CheckpointFile& file : info.files) {
    const std::string name = path + "/" + file.name;
    std::error_code error;
    const auto bytes = fs::file_size(name, error);
    if (error) return NotFound("{}: {}", name, error.message());
    if (bytes != static_cast<uintmax_t>(file.bytes)) {
      return DataLoss("{} has {} bytes, it was saved with {}", name, bytes, file.bytes);
    }
  }
  return {};
}

}  // namespace dynatrain::io
