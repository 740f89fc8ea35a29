#include "dynatrain/elastic/sim_store.h"

#include <utility>

namespace dynatrain::elastic {

class SimStoreServer::Connection final : public Store {
 public:
  Connection(SimStoreServer* server, RankId owner) : server_(*server), owner_(owner) {}

  Status Set(const std::string& key, const std::string& value) override {
    return Perform([&] { Write(key, value); });
  }
  Result<std::optional<std::string>> TryGet(const std::string& key) override {
    std::optional<std::string> value;
    DT_RETURN_IF_ERROR(Perform([&] { value = Find(key); }));
    return value;
  }
  Result<std::string> Wait(const std::string& key, Duration timeout) override {
    const TimePoint deadline = server_.scheduler_->now() + timeout;
    DT_RETURN_IF_ERROR(Perform([] {}));
    const bool met = server_.scheduler_->Block(
        deadline, [this, &key] { return server_.values_.contains(key) || Dead(); });
    if (Dead()) return LostError();
    if (!met) return DeadlineExceeded("store key {}: not set within {} s", key, ToSeconds(timeout));
    return *Find(key);
  }
  Result<std::string> SetIfAbsent(const std::string& key, const std::string& value) override {
    std::string now_there;
    DT_RETURN_IF_ERROR(Perform([&] {
      if (!server_.values_.contains(key)) Write(key, value);
      now_there = *Find(key);
    }));
    return now_there;
  }
  Status Delete(const std::string& key) override {
    return Perform([&] { server_.values_.erase(key); });
  }
  Result<std::unique_ptr<Store>> Clone() override {
    DT_RETURN_IF_ERROR(Perform([] {}));
    return server_.Connect(owner_);
  }

 private:
  static Status LostError() { return Unavailable("connection to the store lost"); }

  bool Dead() const { return server_.scheduler_->killed(owner_) || server_.Lost(owner_); }

  std::optional<std::string> Find(const std::string& key) const {
    const auto it = server_.values_.find(key);
    if (it == server_.values_.end()) return std::nullopt;
    return it->second;
  }

  void Write(const std::string& key, const std::string& value) {
    server_.values_[key] = value;
    if (server_.on_write_) server_.on_write_(owner_, key, value);
  }

  void Travel() {
    SimScheduler& scheduler = *server_.scheduler_;
    if (server_.latency_ == Duration::zero()) return scheduler.Yield();
    const Duration takes(scheduler.random().Between(0, server_.latency_.count()));
    scheduler.Block(scheduler.now() + takes, [] { return false; });
  }

  // The way there, the operation, the way back; the rank may be struck on each.
  template <class Operation>
  Status Perform(Operation operation) {
    SimScheduler& scheduler = *server_.scheduler_;
    Travel();
    if (const auto cut = server_.cut_until_.find(owner_);
        cut != server_.cut_until_.end() && scheduler.now() < cut->second) {
      scheduler.Block(cut->second, [] { return false; });
    }
    if (Dead()) return LostError();
    const bool fails = server_.fail_next_.erase(owner_) > 0;
    if (!fails || scheduler.random().OneIn(2)) operation();
    if (fails) server_.lost_.insert(owner_);
    Travel();
    return Dead() ? LostError() : Status::Ok();
  }

  SimStoreServer& server_;
  const RankId owner_;
};

std::unique_ptr<Store> SimStoreServer::Connect(RankId owner) {
  return std::make_unique<Connection>(this, owner);
}

std::string SimStoreServer::Peek(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? "" : it->second;
}

}  // namespace dynatrain::elastic
