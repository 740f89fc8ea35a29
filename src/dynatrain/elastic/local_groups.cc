#include "dynatrain/elastic/local_groups.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <fmt/ranges.h>

namespace dynatrain::elastic {

class LocalGroupHub::Core {
 public:
  explicit Core(transport::LocalOptions options) : options_(options) {}

  // Returns once all `ranks` have called with the same name.
  Status Meet(const std::string& name, const std::vector<RankId>& ranks, RankId rank,
              Duration timeout) {
    std::unique_lock lock(mutex_);
    if (std::ranges::find(ranks, rank) == ranks.end()) {
      return InvalidArgument("group {}: rank {} is not one of its ranks {}", name, rank,
                             fmt::join(ranks, ","));
    }
    Meeting& meeting = meetings_[name];
    if (!meeting.present.insert(rank).second) {
      return FailedPrecondition("group {}: rank {} has built it before; names never repeat", name,
                                rank);
    }
    changed_.notify_all();
    const auto complete = [&] { return meeting.present.size() == ranks.size(); };
    const auto over = [&] { return complete() || left_.contains(rank); };
    changed_.wait_for(lock, timeout, over);
    if (left_.contains(rank)) return Aborted("group {}: rank {} leaves", name, rank);
    if (complete()) return Status::Ok();
    std::vector<RankId> missing;
    std::ranges::set_difference(std::set(ranks.begin(), ranks.end()), meeting.present,
                                std::back_inserter(missing));
    return DeadlineExceeded("group {}: ranks {} did not come within {} s", name,
                            fmt::join(missing, ","), ToSeconds(timeout));
  }

  std::unique_ptr<transport::Transport> Connect(const std::string& name,
                                                const std::vector<RankId>& ranks, RankId rank) {
    const std::lock_guard lock(mutex_);
    Meeting& meeting = meetings_[name];
    if (!meeting.hub) meeting.hub = std::make_unique<transport::LocalHub>(ranks, options_);
    return meeting.hub->Connect(rank);
  }

  void Leave(RankId rank) {
    const std::lock_guard lock(mutex_);
    left_.insert(rank);
    changed_.notify_all();
  }

  void Count(int delta) {
    const std::lock_guard lock(mutex_);
    live_groups_ += delta;
  }
  int live_groups() const {
    const std::lock_guard lock(mutex_);
    return live_groups_;
  }

 private:
  struct Meeting {
    std::set<RankId> present;
    std::unique_ptr<transport::LocalHub> hub;
  };

  const transport::LocalOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Meeting> meetings_;
  std::set<RankId> left_;
  int live_groups_ = 0;
};

namespace {

class LocalGroup final : public Group {
 public:
  LocalGroup(GroupSpec spec, std::shared_ptr<LocalGroupHub::Core> core)
      : spec_(std::move(spec)), core_(std::move(core)) {
    core_->Count(1);
  }
  ~LocalGroup() override { core_->Count(-1); }
  const GroupSpec& spec() const override { return spec_; }
  void Abort() override {}

 private:
  const GroupSpec spec_;
  const std::shared_ptr<LocalGroupHub::Core> core_;
};

class LocalGroupFactory final : public GroupFactory {
 public:
  LocalGroupFactory(RankId rank, std::shared_ptr<LocalGroupHub::Core> core)
      : rank_(rank), core_(std::move(core)) {}

  Result<std::shared_ptr<Group>> MakeGroup(const std::string& epoch, const GroupSpec& spec,
                                           Duration timeout) override {
    DT_RETURN_IF_ERROR(core_->Meet(epoch + "/" + spec.name, spec.ranks, rank_, timeout));
    return std::shared_ptr<Group>(std::make_shared<LocalGroup>(spec, core_));
  }

  Result<std::unique_ptr<transport::Transport>> MakeTransport(const std::string& epoch,
                                                              const std::vector<RankId>& ranks,
                                                              const std::vector<RankId>&,
                                                              Duration timeout) override {
    const std::string name = epoch + "/transport";
    DT_RETURN_IF_ERROR(core_->Meet(name, ranks, rank_, timeout));
    return core_->Connect(name, ranks, rank_);
  }

  void Leave() override { core_->Leave(rank_); }

 private:
  const RankId rank_;
  const std::shared_ptr<LocalGroupHub::Core> core_;
};

}  // namespace

LocalGroupHub::LocalGroupHub(transport::LocalOptions options)
    : core_(std::make_shared<Core>(options)) {}

std::unique_ptr<GroupFactory> LocalGroupHub::FactoryOf(RankId rank) {
  return std::make_unique<LocalGroupFactory>(rank, core_);
}

int LocalGroupHub::live_groups() const { return core_->live_groups(); }

}  // namespace dynatrain::elastic
