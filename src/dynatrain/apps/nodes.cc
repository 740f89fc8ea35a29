#include "dynatrain/apps/nodes.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "dynatrain/apps/control.h"
#include "dynatrain/apps/machine_name.h"
#include "dynatrain/base/json.h"
#include "dynatrain/bridge/rank_environment.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;

constexpr char kConfigKey[] = "launcher/config";
constexpr char kEndKey[] = "launcher/end";
constexpr Duration kLookInterval = std::chrono::milliseconds(50);
constexpr Duration kLookUpInterval = std::chrono::seconds(1);
constexpr Duration kAliveInterval = std::chrono::seconds(1);

void SleepFor(Duration time) { MonotonicClock().SleepUntil(MonotonicClock().Now() + time); }

// The address of this node towards the store. On a cluster a name may become known only when the
// node that has it starts.
Result<std::string> AwaitAddressTowards(const bridge::StoreAddress& store, Duration timeout) {
  const TimePoint deadline = MonotonicClock().Now() + timeout;
  for (bool told = false;; told = true) {
    Result<std::string> address = bridge::AddressTowards(store);
    if (address.ok() || MonotonicClock().Now() >= deadline) return address;
    if (!told) {
      std::fprintf(stderr, "note: %s; trying again for %.0f s\n",
                   address.status().message().c_str(), ToSeconds(timeout));
    }
    SleepFor(std::min(kLookUpInterval, deadline - MonotonicClock().Now()));
  }
}

// What the environment of a launcher among several says.
Result<NodeOptions> NodeOf(const bridge::RankEnvironment& told, Duration join_timeout) {
  NodeOptions node;
  node.index = told.rank;
  node.count = told.num_ranks;
  node.store = told.store;
  node.serves_store = told.serves_store;
  node.gloo = told.gloo;
  DT_ASSIGN_OR_RETURN(const std::string here, AwaitAddressTowards(node.store, join_timeout));
  if (node.gloo.interface.empty()) node.gloo.address = here;
  if (node.serves_store) node.listen = {here, node.store.port};
  return node;
}

}  // namespace

Result<NodeOptions> FindNode(const std::string& interface, const std::string& host,
                             Duration join_timeout) {
  if (!interface.empty() && !host.empty()) {
    return InvalidArgument("--interface {} and --host {}: give one of them", interface, host);
  }
  NodeOptions node;
  DT_ASSIGN_OR_RETURN(const auto told, bridge::ReadRankEnvironment(bridge::ProcessEnvironment()));
  if (told) {
    DT_ASSIGN_OR_RETURN(node, NodeOf(*told, join_timeout));
  } else if (!host.empty()) {
    node.store.host = node.listen.host = host;
  }
  if (!interface.empty()) node.gloo = {.interface = interface, .address = ""};
  if (!host.empty()) node.gloo = {.interface = "", .address = host};
  node.join_timeout = join_timeout;
  return node;
}

NodeRanks RanksOf(const NodeOptions& node, const JobConfig& config) {
  const int32_t here = config.num_ranks / node.count;
  return {node.index * here, here};
}

Result<std::unique_ptr<Children>> SpawnRanks(const NodeOptions& node, const JobConfig& config,
                                             const std::string& log_directory) {
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
  const NodeRanks ranks = RanksOf(node, config);
  return Children::Spawn(ranks.first, ranks.count, arguments, config.ToJson(), log_directory);
}

NodeLink::NodeLink(elastic::Store* store, const NodeOptions& node)
    : store_(store), node_(node), others_(static_cast<size_t>(node.count)) {}

Status NodeLink::ShareConfig(const JobConfig& config) {
  ranks_each_ = RanksOf(node_, config).count;
  return store_->Set(kConfigKey, config.ToJson());
}

Result<std::optional<JobConfig>> NodeLink::AwaitConfig() {
  const TimePoint deadline = MonotonicClock().Now() + node_.join_timeout;
  while (true) {
    DT_ASSIGN_OR_RETURN(const auto end, Ended());
    if (end) return std::optional<JobConfig>();
    DT_ASSIGN_OR_RETURN(const auto text, store_->TryGet(kConfigKey));
    if (text) {
      DT_ASSIGN_OR_RETURN(JobConfig config, JobConfig::FromJson(*text));
      return std::optional<JobConfig>(std::move(config));
    }
    if (MonotonicClock().Now() >= deadline) {
      return DeadlineExceeded("the first launcher did not say within {:g} s what to start",
                              ToSeconds(node_.join_timeout));
    }
    SleepFor(kLookInterval);
  }
}

Status NodeLink::AwaitOthers(const std::function<bool()>& give_up) {
  const TimePoint deadline = MonotonicClock().Now() + node_.join_timeout;
  while (true) {
    DT_RETURN_IF_ERROR(Pull([](RankId, const std::string&) {}));
    std::vector<int32_t> missing;
    for (int32_t i = 1; i < node_.count; ++i) {
      if (others_[static_cast<size_t>(i)].pulled == 0) missing.push_back(i);
    }
    if (missing.empty()) return {};
    if (give_up()) return Aborted("still waiting for launcher {}", fmt::join(missing, ", "));
    if (MonotonicClock().Now() >= deadline) {
      return DeadlineExceeded(
          "launcher {} of {} did not come to the store at {} within {:g} s; each is started with a "
          "RANK of 0 to {} of its own (SLURM_PROCID under srun); --join-timeout gives them more "
          "time",
          fmt::join(missing, ", "), node_.count,
          Address{node_.store.host, node_.store.port}.ToString(), ToSeconds(node_.join_timeout),
          node_.count - 1);
    }
    SleepFor(kLookInterval);
  }
}

std::string NodeLink::Key(int32_t launcher, int64_t number) const {
  return fmt::format("launcher/{}/{}", launcher, number);
}

Status NodeLink::Say(const std::string& word) {
  last_pushed_ = MonotonicClock().Now();
  return store_->Set(Key(node_.index, pushed_++), word);
}

Status NodeLink::Push(RankId rank, const std::string& line) {
  return Say(DumpJson(json{{"rank", rank}, {"line", line}}));
}

Status NodeLink::StayAlive() {
  if (pushed_ == 0) return Say(DumpJson(json{{"host", MachineName()}}));
  if (MonotonicClock().Now() < last_pushed_ + kAliveInterval) return {};
  return Say("{}");
}

Status NodeLink::TellEnding(const Status& why) {
  return Say(DumpJson(json{{"ending", std::string(why.message())}}));
}

Status NodeLink::TellStopped(int signal) { return Say(DumpJson(json{{"stopped", signal}})); }

Status NodeLink::Leave() { return Say(DumpJson(json{{"left", true}})); }

Status NodeLink::Pull(const std::function<void(RankId, const std::string&)>& on_line) {
  for (int32_t launcher = 1; launcher < node_.count; ++launcher) {
    Other& other = others_[static_cast<size_t>(launcher)];
    while (!other.left) {
      const std::string key = Key(launcher, other.pulled);
      DT_ASSIGN_OR_RETURN(const auto word, store_->TryGet(key));
      if (!word) break;
      DT_RETURN_IF_ERROR(store_->Delete(key));
      ++other.pulled;
      other.last_word = MonotonicClock().Now();
      other.told_silent = false;
      DT_RETURN_IF_ERROR(Hear(launcher, *word, on_line));
    }
  }
  return {};
}

Status NodeLink::Hear(int32_t launcher, const std::string& word,
                      const std::function<void(RankId, const std::string&)>& on_line) {
  const json said = json::parse(word, nullptr, false);
  if (!said.is_object())
    return DataLoss("launcher {} said what makes no sense: {}", launcher, word);
  Other& other = others_[static_cast<size_t>(launcher)];
  other.left = said.contains("left");
  if (said.contains("host")) other.host = said.value("host", "");
  if (said.contains("stopped")) other.stopped = said.value("stopped", 0);
  if (said.contains("ending")) other.ending = said.value("ending", "");
  if (said.contains("rank")) on_line(said.value("rank", RankId{0}), said.value("line", ""));
  return {};
}

Status NodeLink::Missing(Duration silence) {
  for (int32_t i = 1; i < node_.count; ++i) {
    Other& other = OtherOf(i);
    if (!other.ending.empty()) return Unavailable("launcher {}: {}", i, other.ending);
    if (!Unheard(i, MonotonicClock().Now() - silence)) continue;
    other.lost = true;
    return Unavailable("{}; its ranks are lost", SilenceOf(i).ToText());
  }
  return {};
}

bool NodeLink::Unheard(int32_t launcher, TimePoint since) const {
  const Other& other = OtherOf(launcher);
  return !other.left && other.ending.empty() && other.last_word < since;
}

bool NodeLink::HeardSince(TimePoint failure) const {
  for (int32_t i = 1; i < node_.count; ++i) {
    if (Unheard(i, failure)) return false;
  }
  return true;
}

Status NodeLink::LostSince(TimePoint failure) {
  for (int32_t i = 1; i < node_.count; ++i) {
    if (!Unheard(i, failure)) continue;
    OtherOf(i).lost = true;
    return Unavailable("{}; its ranks are lost", SilenceOf(i).ToText());
  }
  return {};
}

std::optional<NodeLink::Silent> NodeLink::NextSilent(Duration silence) {
  for (int32_t i = 1; i < node_.count; ++i) {
    Other& other = OtherOf(i);
    if (other.told_silent || !Unheard(i, MonotonicClock().Now() - silence)) continue;
    other.told_silent = true;
    return SilenceOf(i);
  }
  return std::nullopt;
}

NodeLink::Silent NodeLink::SilenceOf(int32_t launcher) const {
  const Other& other = OtherOf(launcher);
  return {launcher,
          other.host,
          {launcher * ranks_each_, ranks_each_},
          ToSeconds(MonotonicClock().Now() - other.last_word)};
}

std::string NodeLink::Silent::ToText() const {
  const std::string which =
      ranks.count == 1 ? fmt::format("rank {}", ranks.first)
                       : fmt::format("ranks {}-{}", ranks.first, ranks.first + ranks.count - 1);
  return fmt::format("launcher {}{}{} ({}) gave no sign of life for {:.0f} s", launcher,
                     host.empty() ? "" : " on ", host, which, seconds);
}

json NodeLink::Silent::ToJson() const {
  std::vector<RankId> list(static_cast<size_t>(ranks.count));
  std::iota(list.begin(), list.end(), ranks.first);
  return {{"launcher", launcher}, {"host", host}, {"ranks", list}, {"seconds", seconds}};
}

std::string NodeLink::StoppedBy() const {
  for (int32_t i = 1; i < node_.count; ++i) {
    const int signal = others_[static_cast<size_t>(i)].stopped;
    if (signal != 0) return fmt::format("signal {} to launcher {}", signal, i);
  }
  return {};
}

bool NodeLink::all_left() const {
  return std::all_of(others_.begin() + 1, others_.end(),
                     [](const Other& o) { return o.left || o.lost; });
}

void NodeLink::EndOthers(const Status& why, Duration timeout) {
  if (node_.count == 1 || !store_->Set(kEndKey, why.ToString()).ok()) return;
  const TimePoint deadline = MonotonicClock().Now() + timeout;
  while (!all_left() && MonotonicClock().Now() < deadline) {
    if (!Pull([](RankId, const std::string&) {}).ok()) return;
    SleepFor(kLookInterval);
  }
}

Result<std::optional<std::string>> NodeLink::Ended() { return store_->TryGet(kEndKey); }

Result<std::string> NodeLink::AwaitEnd(Duration timeout) {
  const TimePoint deadline = MonotonicClock().Now() + timeout;
  while (true) {
    DT_RETURN_IF_ERROR(StayAlive());
    Result<std::string> why = store_->Wait(kEndKey, kLookInterval);
    if (why.ok() || why.status().code() != StatusCode::kDeadlineExceeded) return why;
    if (MonotonicClock().Now() >= deadline) return why;
  }
}

}  // namespace dynatrain::apps
