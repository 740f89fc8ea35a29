#include "dynatrain/transport/local.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "dynatrain/base/random.h"

namespace dynatrain::transport {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Op {
  OpId id = 0;
  RankId self = 0;
  RankId peer = 0;
  Tag tag = 0;
  bool is_send = false;
  ConstByteSpan source;             // of a send
  ByteSpan destination;             // of a receive
  std::vector<std::byte> buffered;  // of a send that completed before its receive was posted
  bool active = false;              // its turn has come
  bool done = false;
  Status status;

  ByteCount bytes() const {
    return static_cast<ByteCount>(is_send ? source.size() : destination.size());
  }
  std::string Name() const {
    return is_send ? fmt::format("send {} -> {} tag {}", self, peer, tag)
                   : fmt::format("receive {} <- {} tag {}", self, peer, tag);
  }
};
using OpPtr = std::shared_ptr<Op>;

// Messages of equal (source, destination, tag), in the order of posting.
using Lane = std::tuple<RankId, RankId, Tag>;
struct Queues {
  std::deque<OpPtr> sends;
  std::deque<OpPtr> receives;
};

struct Direction {
  int32_t in_flight = 0;
  std::deque<OpPtr> waiting;
};

struct Endpoint {
  bool taken = false;
  Status dead;                // Ok while it lives
  std::map<OpId, OpPtr> ops;  // posted and not yet waited on
  Direction sends;
  Direction receives;
};

Lane LaneOf(const Op& op) {
  return op.is_send ? Lane{op.self, op.peer, op.tag} : Lane{op.peer, op.self, op.tag};
}

}  // namespace

class LocalHub::Core {
 public:
  Core(std::vector<RankId> ranks, LocalOptions options)
      : ranks_(std::move(ranks)), options_(options), random_(options.timing_seed) {
    for (const RankId rank : ranks_) endpoints_[rank];
  }

  const std::vector<RankId>& ranks() const { return ranks_; }
  const LocalOptions& options() const { return options_; }

  void Take(RankId rank) {
    const std::lock_guard lock(mutex_);
    const auto it = endpoints_.find(rank);
    DT_CHECK_MSG(it != endpoints_.end() && !it->second.taken,
                 fmt::format("rank {} is not of this hub, or has its endpoint already", rank));
    it->second.taken = true;
  }

  Result<OpId> Post(Op op) {
    Pause();
    const std::lock_guard lock(mutex_);
    Endpoint& self = endpoints_.at(op.self);
    if (!self.dead.ok()) return Again(op.self);
    if (Status status = CheckPeer(op); !status.ok()) {
      Fail(op.self, status);
      return status;
    }
    op.id = ++last_id_;
    auto posted = std::make_shared<Op>(std::move(op));
    self.ops[posted->id] = posted;
    if (posted->bytes() == 0) {
      posted->done = true;
    } else {
      Enqueue(posted);
    }
    return posted->id;
  }

  Status Wait(RankId rank, OpId id, Duration timeout) {
    Pause();
    const auto deadline = SteadyClock::now() + timeout;
    std::unique_lock lock(mutex_);
    Endpoint& self = endpoints_.at(rank);
    if (!self.dead.ok()) return Again(rank);
    const auto it = self.ops.find(id);
    if (it == self.ops.end()) {
      return InvalidArgument("rank {} waits on operation {}, which is not outstanding", rank, id);
    }
    const OpPtr op = it->second;
    while (!op->done && self.dead.ok()) {
      DeliverOne();
      if (op->done || !self.dead.ok()) break;
      const auto now = SteadyClock::now();
      if (now >= deadline) {
        const Status status =
            DeadlineExceeded("{}: deadline of {} s passed", op->Name(), ToSeconds(timeout));
        Fail(rank, status);
        return status;
      }
      const auto step =
          ready_.empty() ? deadline : std::min(deadline, now + std::chrono::microseconds(50));
      changed_.wait_until(lock, step);
    }
    if (!op->done) return Again(rank);
    const Status status = op->status;
    self.ops.erase(id);
    if (!status.ok()) Fail(rank, status);
    return status;
  }

  void Abort(RankId rank) {
    const std::lock_guard lock(mutex_);
    Fail(rank, Aborted("local transport of rank {} was aborted", rank));
  }

  void Die(RankId rank) {
    const std::lock_guard lock(mutex_);
    Fail(rank, Unavailable("rank {} died", rank));
  }

  void Leave(RankId rank) {
    const std::lock_guard lock(mutex_);
    Fail(rank, Unavailable("rank {} left", rank));
  }

 private:
  // Chance pauses; without the lock.
  void Pause() {
    if (options_.timing_seed == 0) return;
    int64_t draw = 0;
    {
      const std::lock_guard lock(mutex_);
      draw = random_.Between(0, 255);
    }
    if (draw < 16) {
      std::this_thread::sleep_for(std::chrono::microseconds(draw * 10));
    } else if (draw < 64) {
      std::this_thread::yield();
    }
  }

  Status CheckPeer(const Op& op) const {
    if (op.tag >= kTagLimit) return InvalidArgument("{}: tags are below {}", op.Name(), kTagLimit);
    if (op.peer == op.self) return InvalidArgument("{}: a rank sends nothing to itself", op.Name());
    const auto peer = endpoints_.find(op.peer);
    if (peer == endpoints_.end()) {
      return InvalidArgument("{}: rank {} is not one of the {} ranks of this transport", op.Name(),
                             op.peer, ranks_.size());
    }
    if (op.bytes() > options_.max_message) {
      return InvalidArgument("{}: {} bytes are more than max_message = {}", op.Name(), op.bytes(),
                             options_.max_message);
    }
    const auto lane = lanes_.find(LaneOf(op));
    const bool buffered = !op.is_send && lane != lanes_.end() && !lane->second.sends.empty();
    if (!peer->second.dead.ok() && op.bytes() > 0 && !buffered) {
      return Unavailable("{}: {}", op.Name(), peer->second.dead.message());
    }
    return Status::Ok();
  }

  Direction& DirectionOf(const Op& op) {
    Endpoint& self = endpoints_.at(op.self);
    return op.is_send ? self.sends : self.receives;
  }

  void Enqueue(const OpPtr& op) {
    Queues& lane = lanes_[LaneOf(*op)];
    (op->is_send ? lane.sends : lane.receives).push_back(op);
    if (op->is_send && !options_.rendezvous) {
      op->buffered.assign(op->source.begin(), op->source.end());
      op->active = op->done = true;
      Match(LaneOf(*op));
      return;
    }
    Direction& direction = DirectionOf(*op);
    if (options_.max_outstanding > 0 && direction.in_flight >= options_.max_outstanding) {
      direction.waiting.push_back(op);
      return;
    }
    Activate(op);
  }

  void Activate(const OpPtr& op) {
    ++DirectionOf(*op).in_flight;
    op->active = true;
    Match(LaneOf(*op));
  }

  void Match(const Lane& key) {
    Queues& lane = lanes_.at(key);
    while (!lane.sends.empty() && !lane.receives.empty() && lane.sends.front()->active &&
           lane.receives.front()->active) {
      std::pair<OpPtr, OpPtr> pair{lane.sends.front(), lane.receives.front()};
      lane.sends.pop_front();
      lane.receives.pop_front();
      if (options_.timing_seed != 0) {
        ready_.push_back(std::move(pair));
      } else {
        Deliver(pair.first, pair.second);
      }
    }
    changed_.notify_all();
  }

  // Adversarial timing: any one of the matched messages, sometimes none.
  void DeliverOne() {
    if (ready_.empty() || random_.OneIn(3)) return;
    const auto index =
        static_cast<size_t>(random_.Between(0, static_cast<int64_t>(ready_.size()) - 1));
    const auto pair = ready_[index];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(index));
    Deliver(pair.first, pair.second);
    changed_.notify_all();
  }

  void Deliver(const OpPtr& send, const OpPtr& receive) {
    const ConstByteSpan data =
        send->buffered.empty() ? send->source : ConstByteSpan(send->buffered);
    if (data.size() != receive->destination.size()) {
      const Status status = DataLoss("{}: {} bytes came where {} were expected", receive->Name(),
                                     data.size(), receive->destination.size());
      Complete(receive, status);
      Complete(send, status.Within(send->Name()));
      return;
    }
    std::memcpy(receive->destination.data(), data.data(), data.size());
    Complete(receive, Status::Ok());
    Complete(send, Status::Ok());
  }

  void Complete(const OpPtr& op, const Status& status) {
    if (op->done) return;  // a buffered send
    op->done = true;
    op->status = status;
    Direction& direction = DirectionOf(*op);
    if (op->active) --direction.in_flight;
    if (direction.waiting.empty() || direction.in_flight >= options_.max_outstanding) return;
    const OpPtr next = direction.waiting.front();
    direction.waiting.pop_front();
    Activate(next);
  }

  // What a call on a dead endpoint returns: an abort stays an abort.
  Status Again(RankId rank) const {
    const Status& dead = endpoints_.at(rank).dead;
    if (dead.code() == StatusCode::kAborted) return dead;
    return Unavailable("transport of rank {} is dead: {}", rank, dead.message());
  }

  // The endpoint is dead from here on; nobody touches its buffers any more.
  void Fail(RankId rank, const Status& status) {
    Endpoint& self = endpoints_.at(rank);
    if (!self.dead.ok()) return;
    self.dead = status;
    const auto drop = [rank](std::deque<OpPtr>& ops) {
      std::erase_if(ops, [rank](const OpPtr& op) {
        return (op->self == rank && op->buffered.empty()) || (op->peer == rank && !op->done);
      });
    };
    for (auto& [key, lane] : lanes_) {
      drop(lane.sends);
      drop(lane.receives);
    }
    std::erase_if(ready_, [rank](const auto& pair) {
      return (pair.first->self == rank && pair.first->buffered.empty()) ||
             pair.second->self == rank;
    });
    for (auto& [other, endpoint] : endpoints_) {
      drop(endpoint.sends.waiting);
      drop(endpoint.receives.waiting);
      if (other == rank) continue;
      std::vector<OpPtr> lost;
      for (const auto& [id, op] : endpoint.ops) {
        if (op->peer == rank && !op->done && !StillComing(*op)) lost.push_back(op);
      }
      for (const OpPtr& op : lost) {
        if (!op->done) Complete(op, Unavailable("{}: {}", op->Name(), status.message()));
      }
    }
    self.ops.clear();
    changed_.notify_all();
  }

  // Whether a receive is matched already with a buffered send of somebody who is gone.
  bool StillComing(const Op& op) const {
    return std::any_of(ready_.begin(), ready_.end(),
                       [&op](const auto& pair) { return pair.second.get() == &op; });
  }

  const std::vector<RankId> ranks_;
  const LocalOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RankId, Endpoint> endpoints_;
  std::map<Lane, Queues> lanes_;
  std::vector<std::pair<OpPtr, OpPtr>> ready_;  // matched, not yet delivered
  OpId last_id_ = 0;
  Random random_;
};

namespace {

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalHub::Core> core, RankId rank)
      : core_(std::move(core)), rank_(rank) {}
  ~LocalTransport() override { core_->Leave(rank_); }

  RankId rank() const override { return rank_; }
  const std::vector<RankId>& ranks() const override { return core_->ranks(); }
  Capabilities capabilities() const override {
    return {core_->options().rendezvous, core_->options().max_message};
  }
  std::string name() const override { return "local"; }

  Result<OpId> Send(RankId to, Tag tag, ConstByteSpan data) override {
    Op op;
    op.self = rank_;
    op.peer = to;
    op.tag = tag;
    op.is_send = true;
    op.source = data;
    return core_->Post(std::move(op));
  }
  Result<OpId> Receive(RankId from, Tag tag, ByteSpan data) override {
    Op op;
    op.self = rank_;
    op.peer = from;
    op.tag = tag;
    op.destination = data;
    return core_->Post(std::move(op));
  }
  Status Wait(OpId op, Duration timeout) override { return core_->Wait(rank_, op, timeout); }
  void Abort() override { core_->Abort(rank_); }

 private:
  std::shared_ptr<LocalHub::Core> core_;
  const RankId rank_;
};

}  // namespace

LocalHub::LocalHub(std::vector<RankId> ranks, LocalOptions options)
    : core_(std::make_shared<Core>(std::move(ranks), options)) {}

std::unique_ptr<Transport> LocalHub::Connect(RankId rank) {
  core_->Take(rank);
  return std::make_unique<LocalTransport>(core_, rank);
}

void LocalHub::Kill(RankId rank) { core_->Die(rank); }

}  // namespace dynatrain::transport
