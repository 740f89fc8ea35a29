#include "dynatrain/apps/nodes.h"

#include <unistd.h>

#include <chrono>

#include <nlohmann/json.hpp>

#include "dynatrain/apps/control.h"
#include "dynatrain/bridge/rank_environment.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;

constexpr char kConfigKey[] = "launcher/config";
constexpr char kEndKey[] = "launcher/end";
constexpr Duration kLeaveInterval = std::chrono::milliseconds(50);
constexpr RankId kLeft = -1;  // in place of a rank: the launcher's last word

}  // namespace

Result<NodeOptions> FindNode(const std::string& interface, const std::string& host) {
  if (!interface.empty() && !host.empty()) {
    return InvalidArgument("--interface {} and --host {}: give one of them", interface, host);
  }
  NodeOptions node;
  DT_ASSIGN_OR_RETURN(const auto told, bridge::ReadRankEnvironment(bridge::ProcessEnvironment()));
  if (told) {
    node.index = told->rank;
    node.count = told->num_ranks;
    node.store = told->store;
    node.serves_store = told->serves_store;
    node.gloo = told->gloo;
    if (node.gloo.interface.empty() && node.gloo.address.empty()) {
      DT_ASSIGN_OR_RETURN(node.gloo.address, bridge::AddressTowards(node.store));
    }
  }
  if (!interface.empty()) node.gloo = {.interface = interface, .address = ""};
  if (!host.empty()) node.gloo = {.interface = "", .address = host};
  if (!told && !host.empty()) node.store.host = node.listen.host = host;
  if (told && node.serves_store) {
    DT_ASSIGN_OR_RETURN(node.listen.host, bridge::AddressTowards(node.store));
    node.listen.port = node.store.port;
  }
  return node;
}

Result<std::unique_ptr<Children>> SpawnRanks(const NodeOptions& node, const JobConfig& config,
                                             const std::string& log_directory) {
  const int32_t here = config.num_ranks / node.count;
  const auto arguments = [&](RankId rank) {
    std::vector<std::string> list = {"rank",
                                     "--rank",
                                     std::to_string(rank),
                                     "--store",
                                     Address{node.store.host, node.store.port}.ToString(),
                                     "--launcher",
                                     std::to_string(::getpid())};
    const auto add = [&list](const char* flag, const std::string& value) {
      if (!value.empty()) list.insert(list.end(), {flag, value});
    };
    add("--store-prefix", node.store.prefix);
    add("--interface", node.gloo.interface);
    add("--host", node.gloo.address);
    return list;
  };
  return Children::Spawn(node.index * here, here, arguments, config.ToJson(), log_directory);
}

Status NodeLink::ShareConfig(const JobConfig& config) {
  return store_->Set(kConfigKey, config.ToJson());
}

Result<JobConfig> NodeLink::AwaitConfig(Duration timeout) {
  DT_ASSIGN_OR_RETURN(const std::string text, store_->Wait(kConfigKey, timeout));
  return JobConfig::FromJson(text);
}

std::string NodeLink::Key(int32_t launcher, int64_t number) const {
  return fmt::format("launcher/{}/{}", launcher, number);
}

Status NodeLink::Push(RankId rank, const std::string& line) {
  return store_->Set(Key(node_.index, pushed_++), json({rank, line}).dump());
}

Status NodeLink::Leave() { return Push(kLeft, ""); }

Status NodeLink::Pull(const std::function<void(RankId, const std::string&)>& on_line) {
  pulled_.resize(static_cast<size_t>(node_.count));
  for (int32_t launcher = 1; launcher < node_.count; ++launcher) {
    int64_t& next = pulled_[static_cast<size_t>(launcher)];
    while (true) {
      DT_ASSIGN_OR_RETURN(const auto text, store_->TryGet(Key(launcher, next)));
      if (!text) break;
      DT_RETURN_IF_ERROR(store_->Delete(Key(launcher, next++)));
      const json pair = json::parse(*text, nullptr, false);
      if (!pair.is_array() || pair.size() != 2) return Internal("launcher {}: {}", launcher, *text);
      const auto rank = pair[0].get<RankId>();
      if (rank == kLeft) {
        ++left_;
      } else {
        on_line(rank, pair[1].get<std::string>());
      }
    }
  }
  return {};
}

void NodeLink::EndOthers(const Status& why, Duration timeout) {
  if (node_.count == 1 || !store_->Set(kEndKey, why.ToString()).ok()) return;
  const TimePoint deadline = MonotonicClock().Now() + timeout;
  while (!all_left() && MonotonicClock().Now() < deadline) {
    if (!Pull([](RankId, const std::string&) {}).ok()) return;
    MonotonicClock().SleepUntil(MonotonicClock().Now() + kLeaveInterval);
  }
}

Result<std::optional<std::string>> NodeLink::Ended() { return store_->TryGet(kEndKey); }

}  // namespace dynatrain::apps
