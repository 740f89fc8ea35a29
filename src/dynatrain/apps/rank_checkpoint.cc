#include "dynatrain/apps/rank_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "dynatrain/apps/resume_check.h"
#include "dynatrain/base/clock.h"
#include "dynatrain/base/json.h"
#include "dynatrain/io/checkpoint.h"

namespace dynatrain::apps {
namespace {

constexpr Duration kSaveTimeout = std::chrono::seconds(600);
constexpr Duration kLoadTimeout = std::chrono::seconds(600);

// What a rank says in the store, and what the lowest rank answers: "ok TEXT" or "error TEXT".
constexpr std::string_view kOk = "ok ";
constexpr std::string_view kError = "error ";

template <class T>
std::string Say(const Result<T>& result, const std::string& text) {
  return result.ok() ? fmt::format("{}{}", kOk, text)
                     : fmt::format("{}{}", kError, result.status().ToString());
}

// One exchange between the ranks of a layout: all say something, the lowest rank hears all of it
// and answers all. Keys lie under `prefix`, and none is left once all have taken the answer.
class Exchange {
 public:
  Exchange(elastic::Store* store, std::string prefix, std::vector<RankId> ranks, Duration timeout)
      : store_(store), prefix_(std::move(prefix)), ranks_(std::move(ranks)), timeout_(timeout) {}

  RankId lowest() const { return std::ranges::min(ranks_); }
  Status Tell(RankId rank, const std::string& text) { return store_->Set(Key(rank), text); }
  // By rank; the first error that a rank told is in `failed`, with the rank's name.
  Result<std::vector<std::string>> HearAll(Status* failed) {
    std::vector<std::string> texts;
    for (const RankId rank : ranks_) {
      DT_ASSIGN_OR_RETURN(std::string text, store_->Wait(Key(rank), timeout_));
      if (!text.starts_with(kOk) && failed->ok()) {
        *failed =
            Unavailable("rank {}: {}", rank, text.substr(std::min(kError.size(), text.size())));
      }
      texts.push_back(text.starts_with(kOk) ? text.substr(kOk.size()) : "");
    }
    for (const RankId rank : ranks_) DT_RETURN_IF_ERROR(store_->Delete(Key(rank)));
    return texts;
  }
  // The lowest rank: returns when all others have the answer.
  Status Answer(const std::string& text) {
    DT_RETURN_IF_ERROR(store_->Set(AnswerKey(), text));
    for (const RankId rank : ranks_) {
      if (rank == lowest()) continue;
      DT_RETURN_IF_ERROR(store_->Wait(Key(rank), timeout_).status());
      DT_RETURN_IF_ERROR(store_->Delete(Key(rank)));
    }
    return store_->Delete(AnswerKey());
  }
  // The other ranks.
  Result<std::string> TakeAnswer(RankId rank) {
    DT_ASSIGN_OR_RETURN(std::string answer, store_->Wait(AnswerKey(), timeout_));
    DT_RETURN_IF_ERROR(Tell(rank, std::string(kOk)));
    return answer;
  }

 private:
  std::string Key(RankId rank) const { return fmt::format("{}/{}", prefix_, rank); }
  std::string AnswerKey() const { return prefix_ + "/answer"; }

  elastic::Store* store_;
  const std::string prefix_;
  const std::vector<RankId> ranks_;
  const Duration timeout_;
};

Result<std::string> Finish(const CheckpointContext& context,
                           const elastic::LayoutInstance& instance, int64_t step,
                           const std::string& job_state, const std::vector<std::string>& told,
                           io::CheckpointInfo* info) {
  std::vector<io::SavedShards> parts;
  for (const std::string& text : told) {
    DT_ASSIGN_OR_RETURN(io::SavedShards part, io::SavedShards::FromJson(text));
    parts.push_back(std::move(part));
  }
  DT_ASSIGN_OR_RETURN(auto run, RunFacts(*context.config));
  *info = {.step = step,
           .layout = instance.map->layout(),
           .job_state = job_state,
           .catalog_fingerprint = context.setup->catalog->Fingerprint(),
           .dtype = context.config->dtype,
           .run = std::move(run),
           .digest = 0,
           .files = {}};
  return io::FinishCheckpoint(context.config->save, info, parts);
}

}  // namespace

Result<bool> SaveCheckpoint(const CheckpointContext& context,
                            const elastic::LayoutInstance& instance, int64_t step,
                            const std::string& job_state, std::string_view occasion) {
  const TimePoint began = MonotonicClock().Now();
  const std::string& directory = context.config->save;
  Exchange exchange(context.store, fmt::format("save/{}/{}", step, occasion), instance.map->Ranks(),
                    kSaveTimeout);
  const Result<io::SavedShards> saved =
      io::SaveShards(directory, step, *instance.map, context.rank, instance.state);
  DT_RETURN_IF_ERROR(exchange.Tell(context.rank, Say(saved, saved.ok() ? saved->ToJson() : "")));
  if (context.rank != exchange.lowest()) {
    DT_ASSIGN_OR_RETURN(const std::string answer, exchange.TakeAnswer(context.rank));
    return answer.starts_with(kOk);
  }
  Status failed;
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> told, exchange.HearAll(&failed));
  io::CheckpointInfo info;
  const Result<std::string> path = failed.ok()
                                       ? Finish(context, instance, step, job_state, told, &info)
                                       : Result<std::string>(failed);
  if (!path.ok()) io::DropPartial(directory, step);
  DT_RETURN_IF_ERROR(exchange.Answer(Say(path, path.ok() ? *path : "")));
  if (path.ok()) {
    context.events->Write("saved", {{"path", *path},
                                    {"step", step},
                                    {"seconds", ToSeconds(MonotonicClock().Now() - began)},
                                    {"digest", HexText(info.digest)}});
  } else {
    context.events->Write("save_failed", {{"step", step}, {"message", path.status().ToString()}});
  }
  return path.ok();
}

Result<std::string> LoadCheckpoint(const CheckpointContext& context,
                                   elastic::LayoutInstance* instance) {
  const TimePoint began = MonotonicClock().Now();
  const std::string& path = context.config->resume;
  DT_ASSIGN_OR_RETURN(const io::CheckpointInfo info, io::ReadCheckpointInfo(path));
  DT_RETURN_IF_ERROR(io::LoadState(path, info, *instance->map, context.rank, &instance->state));
  io::SavedShards part;
  part.digest = vps::DigestOfRank(
      *instance->map, context.rank,
      [instance](vps::BufferIndex index) { return std::as_const(instance->state).bytes(index); },
      static_cast<uint64_t>(info.step));
  Exchange exchange(context.store, "load", instance->map->Ranks(), kLoadTimeout);
  DT_RETURN_IF_ERROR(exchange.Tell(context.rank, fmt::format("{}{}", kOk, part.ToJson())));
  if (context.rank != exchange.lowest()) {
    DT_ASSIGN_OR_RETURN(const std::string answer, exchange.TakeAnswer(context.rank));
    if (answer.starts_with(kOk)) return info.job_state;
    return DataLoss("{}", answer.substr(std::min(kError.size(), answer.size())));
  }
  Status failed;
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> told, exchange.HearAll(&failed));
  vps::StateDigest sum;
  for (const std::string& text : told) {
    DT_ASSIGN_OR_RETURN(const io::SavedShards other, io::SavedShards::FromJson(text));
    sum = vps::Combine(sum, other.digest);
  }
  const Result<bool> same =
      sum.digest == info.digest && sum.replica == 0
          ? Result<bool>(true)
          : DataLoss("{}: what was loaded has digest {:016x}, what was saved {:016x}", path,
                     sum.digest, info.digest);
  DT_RETURN_IF_ERROR(exchange.Answer(Say(same, "")));
  DT_RETURN_IF_ERROR(same.status());
  context.events->Write("resumed", {{"path", path},
                                    {"step", info.step},
                                    {"load_seconds", ToSeconds(MonotonicClock().Now() - began)},
                                    {"digest", HexText(sum.digest)}});
  return info.job_state;
}

}  // namespace dynatrain::apps
