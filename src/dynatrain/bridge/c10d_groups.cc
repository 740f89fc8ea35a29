#include "dynatrain/bridge/c10d_groups.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "dynatrain/base/check.h"
#include "dynatrain/bridge/broken_pipe.h"
#include "dynatrain/bridge/c10d_transport.h"
#include "dynatrain/bridge/deadline.h"
#include "dynatrain/bridge/fence.h"
#include "dynatrain/bridge/group_store.h"

namespace dynatrain::bridge {
namespace {

constexpr int kAbortTag = INT32_MAX;  // nobody sends with it
constexpr transport::Tag kWarmUpTag = 0;
// Once all members are there. Gloo cannot be interrupted while it connects, so a member that leaves just then
// costs the others this long.
constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr size_t kWarmUpBytes = size_t{1} << 16;

class GlooGroup final : public elastic::Group {
 public:
  GlooGroup(elastic::GroupSpec spec, c10::intrusive_ptr<c10d::Backend> backend,
            std::shared_ptr<WorkerThread> reaper)
      : spec_(std::move(spec)), backend_(std::move(backend)), reaper_(std::move(reaper)) {}

  ~GlooGroup() override {
    reaper_->Post([backend = std::move(backend_)]() mutable { backend.reset(); });
  }

  const elastic::GroupSpec& spec() const override { return spec_; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }

  // Gloo has no abort. A receive that times out makes it give up all of the group's connections,
  // and with them every operation here and at the peers.
  void Abort() override {
    if (backend_->getSize() < 2) return;
    const Status status = Fence("abort", [&] {
      std::vector<at::Tensor> nothing = {at::empty({1}, at::kByte)};
      const int peer = backend_->getRank() == 0 ? 1 : 0;
      backend_->recv(nothing, peer, kAbortTag)->wait(std::chrono::milliseconds(1));
    });
    static_cast<void>(status.ok());  // the timeout, or the group was dead before
  }

 private:
  const elastic::GroupSpec spec_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  const std::shared_ptr<WorkerThread> reaper_;
};

std::vector<uint8_t> ToBytes(const std::string& text) { return {text.begin(), text.end()}; }

// Announces this rank and waits for the other members.
Status Gather(GroupStore& store, RankId rank, const std::vector<RankId>& ranks,
              const std::string& what, const Deadline& deadline) {
  const std::string members = fmt::format("{}", fmt::join(ranks, ","));
  auto key = [](RankId member) { return fmt::format("here/{}", member); };
  std::vector<std::string> keys;
  for (const RankId member : ranks) keys.push_back(key(member));
  DT_RETURN_IF_ERROR(Fence(what, [&] { store.set(key(rank), ToBytes(members)); }));
  const Status came = Fence(what, [&] { store.wait(keys, ToMillis(deadline.left())); });
  if (came.code() == StatusCode::kDeadlineExceeded) {
    std::vector<RankId> missing;
    DT_RETURN_IF_ERROR(Fence(what, [&] {
      std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(missing),
                   [&](RankId member) { return !store.check({key(member)}); });
    }));
    return DeadlineExceeded("{}: ranks {} did not come within {:.1f} s; members are {}", what,
                            fmt::join(missing, ","), ToSeconds(deadline.timeout()), members);
  }
  DT_RETURN_IF_ERROR(came);
  return Fence(what, [&]() -> Status {
    for (const RankId member : ranks) {
      const std::vector<uint8_t> told = store.get(key(member));
      if (told == ToBytes(members)) continue;
      return FailedPrecondition(
          "{}: rank {} takes its members to be {}, rank {} takes them to be {}", what, rank,
          members, member, std::string(told.begin(), told.end()));
    }
    return {};
  });
}

Status Barrier(c10d::Backend& backend, const std::string& what, const Deadline& deadline) {
  return Fence(what + ": first barrier", [&] {
    c10d::BarrierOptions options;
    options.timeout = ToMillis(deadline.left());
    backend.barrier(options)->wait();
  });
}

// Sends the first bytes both ways over each pair that the transport will use.
Status WarmUp(transport::Transport& transport, const std::vector<RankId>& peers,
              const Deadline& deadline) {
  const std::vector<std::byte> out(kWarmUpBytes);
  std::vector<std::vector<std::byte>> in;
  std::vector<transport::OpId> ops;
  for (const RankId peer : peers) {
    in.emplace_back(kWarmUpBytes);
    DT_ASSIGN_OR_RETURN(const transport::OpId op, transport.Receive(peer, kWarmUpTag, in.back()));
    ops.push_back(op);
  }
  for (const RankId peer : peers) {
    DT_ASSIGN_OR_RETURN(const transport::OpId op, transport.Send(peer, kWarmUpTag, out));
    ops.push_back(op);
  }
  for (const transport::OpId op : ops) DT_RETURN_IF_ERROR(transport.Wait(op, deadline.left()));
  return {};
}

}  // namespace

GlooGroupFactory::GlooGroupFactory(RankId rank, c10::intrusive_ptr<c10d::Store> store,
                                   const GlooOptions& options, GlooDevice device)
    : rank_(rank),
      store_(std::move(store)),
      options_(options),
      device_(std::move(device)),
      reaper_(std::make_shared<WorkerThread>()) {}

GlooGroupFactory::~GlooGroupFactory() {
  static_cast<void>(DeleteKeys().ok());  // without a store there are no keys
}

Result<std::unique_ptr<GlooGroupFactory>> GlooGroupFactory::Connect(RankId rank,
                                                                    const StoreAddress& store,
                                                                    const GlooOptions& options,
                                                                    Duration timeout) {
  DT_ASSIGN_OR_RETURN(c10::intrusive_ptr<c10d::Store> connection, ConnectC10dStore(store, timeout));
  return Make(rank, std::move(connection), options);
}

Result<std::unique_ptr<GlooGroupFactory>> GlooGroupFactory::Make(
    RankId rank, c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options) {
  if (options.interface.empty() && options.address.empty()) {
    return InvalidArgument(
        "Gloo needs a network interface or an address of this machine, such as lo");
  }
  IgnoreBrokenPipes();
  const bool by_name = !options.interface.empty();
  const std::string& where = by_name ? options.interface : options.address;
  DT_ASSIGN_OR_RETURN(
      GlooDevice device,
      FenceResult(
          fmt::format("open {} {} for Gloo", by_name ? "network interface" : "address", where),
          [&] {
            return by_name ? MakeGlooDeviceForInterface(where) : MakeGlooDeviceForAddress(where);
          }));
  return std::unique_ptr<GlooGroupFactory>(
      new GlooGroupFactory(rank, std::move(store), options, std::move(device)));
}

Result<c10::intrusive_ptr<c10d::Backend>> GlooGroupFactory::Build(const std::string& prefix,
                                                                  const std::string& what,
                                                                  const std::vector<RankId>& ranks,
                                                                  Duration timeout) {
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  if (self == ranks.end()) {
    return InvalidArgument("{}: rank {} is not among its members {}", what, rank_,
                           fmt::join(ranks, ","));
  }
  const Deadline deadline(timeout);
  auto store = c10::make_intrusive<GroupStore>(prefix, store_, ToMillis(timeout), leaving_);
  c10::intrusive_ptr<c10d::Backend> backend;
  auto build = [&]() -> Status {
    DT_RETURN_IF_ERROR(Gather(*store, rank_, ranks, what, deadline));
    DT_RETURN_IF_ERROR(Fence(fmt::format("{} of ranks {}", what, fmt::join(ranks, ",")), [&] {
      backend = MakeGlooBackend(
          store, static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()),
          ToMillis(std::min<Duration>(deadline.left(), kConnectTimeout)), device_);
    }));
    DT_RETURN_IF_ERROR(Barrier(*backend, what, deadline));
    return Fence(what, [&] { backend->setTimeout(ToMillis(options_.operation_timeout)); });
  };
  const Status built = build();
  written_.push_back(store);
  if (!built.ok()) {
    reaper_->Post([backend = std::move(backend)]() mutable { backend.reset(); });
    return built;
  }
  DT_RETURN_IF_ERROR(DeleteKeys().Within(what));
  return backend;
}

Status GlooGroupFactory::DeleteKeys() {
  return Fence("delete keys of group building", [&] {
    for (const auto& store : written_) store->DeleteWritten();
    written_.clear();
  });
}

Result<std::shared_ptr<elastic::Group>> GlooGroupFactory::MakeGroup(const std::string& epoch,
                                                                    const elastic::GroupSpec& spec,
                                                                    Duration timeout) {
  DT_ASSIGN_OR_RETURN(
      c10::intrusive_ptr<c10d::Backend> backend,
      Build(fmt::format("group/{}/{}", epoch, spec.name),
            fmt::format("group {} of epoch {}", spec.name, epoch), spec.ranks, timeout));
  return std::shared_ptr<elastic::Group>(
      std::make_shared<GlooGroup>(spec, std::move(backend), reaper_));
}

Result<std::unique_ptr<transport::Transport>> GlooGroupFactory::MakeTransport(
    const std::string& epoch, const std::vector<RankId>& ranks, const std::vector<RankId>& peers,
    Duration timeout) {
  const Deadline deadline(timeout);
  DT_ASSIGN_OR_RETURN(
      c10::intrusive_ptr<c10d::Backend> backend,
      Build("transport/" + epoch, fmt::format("transport of epoch {}", epoch), ranks, timeout));
  std::unique_ptr<transport::Transport> transport =
      std::make_unique<C10dTransport>(std::move(backend), ranks, rank_, reaper_);
  DT_RETURN_IF_ERROR(WarmUp(*transport, peers, deadline).Within("warm up"));
  return transport;
}

c10::intrusive_ptr<c10d::Backend> BackendOf(const elastic::Group& group) {
  const auto* gloo = dynamic_cast<const GlooGroup*>(&group);
  DT_CHECK_MSG(gloo != nullptr, "not a group of GlooGroupFactory");
  return gloo->backend();
}

}  // namespace dynatrain::bridge
