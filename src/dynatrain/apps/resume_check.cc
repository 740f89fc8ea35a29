#include "dynatrain/apps/resume_check.h"

#include <algorithm>
#include <array>

#include "dynatrain/base/hash.h"
#include "dynatrain/io/checkpoint.h"
#include "dynatrain/io/file.h"
#include "dynatrain/trainer/token_file.h"

namespace dynatrain::apps {
namespace {

// A different value of these loses the position in the data.
constexpr std::array kOfThePosition = {"data", "seq", "global-batch", "seed"};
// A different value of these is another schedule, which may be what is wanted.
constexpr std::array kOfTheSchedule = {"lr", "steps"};

constexpr int64_t kPieces = 64;
constexpr int64_t kPieceBytes = 4096;

Result<std::string> DataFacts(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const trainer::TokenFile tokens, trainer::FindTokens(path));
  DT_ASSIGN_OR_RETURN(const io::MappedFile file, io::MappedFile::Open(tokens.path));
  const std::string_view text = file.text();
  const auto length = static_cast<int64_t>(text.size());
  Hasher hash;
  for (int64_t i = 0; i < kPieces; ++i) {
    const int64_t begin = std::max<int64_t>(0, length - kPieceBytes) * i / (kPieces - 1);
    hash.Add(text.substr(static_cast<size_t>(begin), kPieceBytes));
  }
  return fmt::format("{} bytes, hash {:016x}", length, hash.hash());
}

Status CheckSameState(const std::string& path, const io::CheckpointInfo& info,
                      const JobSetup& setup, const JobConfig& config) {
  if (info.dtype != config.dtype) {
    return InvalidArgument("--resume {}: it holds a state in {}, this run has --dtype {}", path,
                           info.dtype, config.dtype);
  }
  if (info.catalog_fingerprint != setup.catalog->Fingerprint()) {
    return InvalidArgument("--resume {}: it holds the state of another model than {}", path,
                           config.model);
  }
  return io::CheckFiles(path, info).Within("--resume");
}

Status CheckSameRun(const std::string& path, const io::CheckpointInfo& info,
                    const JobConfig& config, std::vector<std::string>* notes) {
  DT_ASSIGN_OR_RETURN(const auto facts, RunFacts(config));
  // A checkpoint that no run has made (an import) has no position yet.
  const auto before = [&info](const char* name) {
    const auto at = info.run.find(name);
    return at == info.run.end() ? std::string() : at->second;
  };
  for (const char* name : kOfThePosition) {
    if (before(name).empty() || before(name) == facts.at(name)) continue;
    return InvalidArgument(
        "--resume {}: it was saved with {} {}, this run has {}: the position in the data would be "
        "lost",
        path, name, before(name), facts.at(name));
  }
  for (const char* name : kOfTheSchedule) {
    if (before(name).empty() || before(name) == facts.at(name)) continue;
    notes->push_back(fmt::format("{} was saved with --{} {}; this run goes on with {}", path, name,
                                 before(name), facts.at(name)));
  }
  return {};
}

}  // namespace

Result<std::map<std::string, std::string>> RunFacts(const JobConfig& config) {
  DT_ASSIGN_OR_RETURN(std::string data, DataFacts(config.data));
  return std::map<std::string, std::string>{{"model", config.model},
                                            {"data", std::move(data)},
                                            {"seq", std::to_string(config.seq)},
                                            {"global-batch", std::to_string(config.global_batch)},
                                            {"seed", std::to_string(config.seed)},
                                            {"lr", fmt::format("{}", config.lr)},
                                            {"steps", std::to_string(config.steps)}};
}

Status CheckResume(const JobSetup& setup, JobConfig* config, std::vector<std::string>* notes) {
  if (config->resume.empty()) return {};
  DT_ASSIGN_OR_RETURN(const std::string path, io::FindCheckpoint(config->resume));
  DT_ASSIGN_OR_RETURN(const io::CheckpointInfo info, io::ReadCheckpointInfo(path));
  DT_RETURN_IF_ERROR(CheckSameState(path, info, setup, *config));
  DT_RETURN_IF_ERROR(CheckSameRun(path, info, *config, notes));
  if (info.step >= config->last_step()) {
    return InvalidArgument("--resume {}: it is of step {}, so nothing is left to do up to step {}",
                           path, info.step, config->last_step());
  }
  for (const ScheduledSwitch& scheduled : config->switches) {
    if (scheduled.step >= info.step) continue;
    return InvalidArgument(
        "--switch {}:{}: the run goes on after step {}; a switch can be asked for from there on",
        scheduled.step, scheduled.spec, info.step);
  }
  config->resume = path;
  return {};
}

}  // namespace dynatrain::apps
