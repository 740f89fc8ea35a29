#include "dynatrain/elastic/sim_net.h"

#include <algorithm>
#include <cstring>

#include <fmt/ranges.h>

namespace dynatrain::elastic {

using transport::OpId;
using transport::Tag;

struct SimNet::Operation {
  OpId id;
  bool is_send;
  RankId peer;
  Tag tag;
  ConstByteSpan from;  // of a send; of `copy` if buffered
  std::vector<std::byte> copy;
  ByteSpan into;  // of a receive
  bool buffered = false;
  bool done = false;
};

class SimNet::Endpoint final : public transport::Transport {
 public:
  Endpoint(SimNet* net, std::string epoch, std::vector<RankId> ranks, RankId rank)
      : net_(*net), epoch_(std::move(epoch)), ranks_(std::move(ranks)), rank_(rank) {
    net_.endpoints_[epoch_][rank_] = this;
  }
  ~Endpoint() override {
    // What was buffered is on its way and arrives.
    net_.endpoints_[epoch_].erase(rank_);
    for (Operation& op : operations_) {
      if (op.is_send && op.buffered && !op.done) Deliver(&op);
    }
  }

  RankId rank() const override { return rank_; }
  const std::vector<RankId>& ranks() const override { return ranks_; }
  transport::Capabilities capabilities() const override {
    return {net_.options_.rendezvous, INT64_MAX};
  }
  std::string name() const override { return "sim"; }

  Result<OpId> Send(RankId to, Tag tag, ConstByteSpan data) override {
    DT_RETURN_IF_ERROR(Begin("send", to, tag));
    Operation op{next_id_++, true, to, tag, data, {}, {}};
    if (!net_.options_.rendezvous) {
      op.buffered = true;
      op.copy.assign(data.begin(), data.end());
    }
    operations_.push_back(std::move(op));
    return operations_.back().id;
  }

  Result<OpId> Receive(RankId from, Tag tag, ByteSpan data) override {
    DT_RETURN_IF_ERROR(Begin("receive", from, tag));
    operations_.push_back({next_id_++, false, from, tag, {}, {}, data});
    return operations_.back().id;
  }

  Status Wait(OpId id, Duration timeout) override {
    Operation* op = Find(id);
    DT_CHECK_MSG(op, "wait for an operation that was not posted");
    const std::string what = fmt::format("{} {} {} {} tag {}", op->is_send ? "send" : "receive",
                                         rank_, op->is_send ? "->" : "<-", op->peer, op->tag);
    DT_RETURN_IF_ERROR(Alive(what));
    const TimePoint deadline = net_.scheduler_->now() + timeout;
    net_.scheduler_->Block(deadline, [this, op] { return Settled(*op); });
    if (const Status alive = Alive(what); !alive.ok()) return alive;
    if (!op->done && !op->buffered) {
      Operation* other = Matching(*op);
      if (!other) {
        dead_ = true;
        return net_.Broken(op->peer)
                   ? Unavailable("{}: connection closed by peer", what)
                   : DeadlineExceeded("{}: deadline of {} s passed", what, ToSeconds(timeout));
      }
      if (const Status moved =
              op->is_send ? Transfer(op, other, op->peer) : Transfer(other, op, rank_);
          !moved.ok()) {
        dead_ = true;
        return moved;
      }
    }
    if (op->done || !op->is_send)
      std::erase_if(operations_, [id](const Operation& o) { return o.id == id; });
    net_.scheduler_->Yield();
    return Alive(what);
  }

  void Abort() override { aborted_ = true; }

 private:
  Operation* Find(OpId id) {
    const auto it = std::ranges::find(operations_, id, &Operation::id);
    return it == operations_.end() ? nullptr : &*it;
  }

  Status Alive(const std::string& what) {
    if (net_.scheduler_->killed(rank_)) dead_ = true;
    if (net_.fail_transfer_.erase(rank_) > 0) dead_ = true;
    if (aborted_) return Aborted("{}: the transport was aborted", what);
    if (dead_) return Unavailable("{}: the transport failed", what);
    return Status::Ok();
  }

  Status Begin(std::string_view verb, RankId peer, Tag tag) {
    net_.scheduler_->Yield();
    if (peer == rank_ || std::ranges::find(ranks_, peer) == ranks_.end()) {
      return InvalidArgument("{} {} with {}: not in this transport", verb, rank_, peer);
    }
    return Alive(fmt::format("{} {} with {} tag {}", verb, rank_, peer, tag));
  }

  Endpoint* Peer(RankId peer) const {
    const auto& all = net_.endpoints_[epoch_];
    const auto it = all.find(peer);
    return it == all.end() ? nullptr : it->second;
  }

  // The first operation of the peer that fits.
  Operation* Matching(const Operation& op) const {
    if (!net_.Reachable(rank_, op.peer)) return nullptr;
    Endpoint* peer = Peer(op.peer);
    if (!peer) return nullptr;
    for (Operation& other : peer->operations_) {
      if (other.peer == rank_ && other.tag == op.tag && other.is_send != op.is_send &&
          !other.done) {
        return &other;
      }
    }
    return nullptr;
  }

  bool Settled(const Operation& op) const {
    return op.done || op.buffered || aborted_ || net_.fail_transfer_.contains(rank_) ||
           net_.Broken(op.peer) || Matching(op) != nullptr;
  }

  Status Transfer(Operation* send, Operation* receive, RankId receiver) {
    const ConstByteSpan from = send->buffered ? ConstByteSpan(send->copy) : send->from;
    if (from.size() != receive->into.size()) {
      return DataLoss("{} bytes sent, {} expected", from.size(), receive->into.size());
    }
    if (!from.empty()) std::memcpy(receive->into.data(), from.data(), from.size());
    if (!from.empty() && net_.corrupt_.erase(receiver) > 0) {
      const auto at = static_cast<size_t>(
          net_.scheduler_->random().Between(0, static_cast<int64_t>(from.size()) - 1));
      receive->into[at] ^= std::byte{4};
    }
    send->done = true;
    receive->done = true;
    return Status::Ok();
  }

  void Deliver(Operation* send) {
    Endpoint* peer = Peer(send->peer);
    if (!peer || !net_.Reachable(rank_, send->peer)) return;
    for (Operation& other : peer->operations_) {
      if (other.peer == rank_ && other.tag == send->tag && !other.is_send && !other.done) {
        const Status ignored = Transfer(send, &other, send->peer);
        static_cast<void>(ignored.ok());
        return;
      }
    }
  }

  SimNet& net_;
  const std::string epoch_;
  const std::vector<RankId> ranks_;
  const RankId rank_;
  std::vector<Operation> operations_;
  OpId next_id_ = 1;
  bool dead_ = false;
  bool aborted_ = false;
};

class SimNet::Factory final : public GroupFactory {
 public:
  Factory(SimNet* net, RankId rank) : net_(*net), rank_(rank) {}

  Result<std::shared_ptr<Group>> MakeGroup(const std::string& epoch, const GroupSpec& spec,
                                           Duration timeout) override {
    DT_RETURN_IF_ERROR(net_.Meet(epoch + "/" + spec.name, spec.ranks, rank_, timeout));
    return std::shared_ptr<Group>(std::make_shared<NamedGroup>(spec));
  }

  Result<std::unique_ptr<transport::Transport>> MakeTransport(const std::string& epoch,
                                                              const std::vector<RankId>& ranks,
                                                              const std::vector<RankId>&,
                                                              Duration timeout) override {
    net_.last_epoch_[rank_] = epoch;
    DT_RETURN_IF_ERROR(net_.Meet(epoch + "/transport", ranks, rank_, timeout));
    return std::unique_ptr<transport::Transport>(
        std::make_unique<Endpoint>(&net_, epoch, ranks, rank_));
  }

  void Leave() override { net_.left_.insert(rank_); }

 private:
  class NamedGroup final : public Group {
   public:
    explicit NamedGroup(GroupSpec spec) : spec_(std::move(spec)) {}
    const GroupSpec& spec() const override { return spec_; }
    void Abort() override {}

   private:
    const GroupSpec spec_;
  };

  SimNet& net_;
  const RankId rank_;
};

SimNet::~SimNet() {
  for (const auto& [epoch, endpoints] : endpoints_) DT_CHECK(endpoints.empty());
}

std::unique_ptr<GroupFactory> SimNet::FactoryOf(RankId rank) {
  return std::make_unique<Factory>(this, rank);
}

std::string SimNet::last_epoch(RankId rank) const {
  const auto it = last_epoch_.find(rank);
  return it == last_epoch_.end() ? "" : it->second;
}

bool SimNet::Reachable(RankId a, RankId b) const {
  const auto cut = cut_until_.find(std::minmax(a, b));
  return cut == cut_until_.end() || scheduler_->now() >= cut->second;
}

Status SimNet::Meet(const std::string& name, const std::vector<RankId>& ranks, RankId rank,
                    Duration timeout) {
  const TimePoint deadline = scheduler_->now() + timeout;
  scheduler_->Yield();
  if (scheduler_->killed(rank)) return Unavailable("group {}: killed", name);
  if (fail_setup_.erase(rank) > 0) return Unavailable("group {}: no socket", name);
  std::set<RankId>& present = meetings_[name];
  if (!present.insert(rank).second) {
    return FailedPrecondition("group {}: rank {} has built it before", name, rank);
  }
  scheduler_->Block(deadline, [this, &present, &ranks, rank] {
    return present.size() == ranks.size() || left_.contains(rank);
  });
  if (left_.contains(rank)) return Aborted("group {}: rank {} leaves", name, rank);
  if (!scheduler_->killed(rank) && present.size() == ranks.size()) return Status::Ok();
  return DeadlineExceeded("group {} of ranks {}: only {} came within {} s", name,
                          fmt::join(ranks, ","), fmt::join(present, ","), ToSeconds(timeout));
}

}  // namespace dynatrain::elastic
