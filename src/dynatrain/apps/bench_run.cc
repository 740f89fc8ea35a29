#include "dynatrain/apps/bench_run.h"

#include <unistd.h>

#include <mutex>
#include <thread>

#include "dynatrain/apps/bench_rank.h"
#include "dynatrain/apps/children.h"
#include "dynatrain/apps/log_directory.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/elastic/local_groups.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;

constexpr Duration kPollInterval = std::chrono::milliseconds(100);
constexpr Duration kBlameWindow = std::chrono::milliseconds(700);
constexpr Duration kTerminateGrace = std::chrono::seconds(1);
constexpr Duration kJoinTimeout = std::chrono::seconds(60);
constexpr Duration kExchangeTimeout = std::chrono::seconds(120);

// Follows processes; the first error told explains the others, an exit only if nothing was told.
class Follower {
 public:
  explicit Follower(BenchEvents* events) : events_(*events) {}

  void OnLine(RankId rank, const std::string& line) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("event")) {
      Fail(&error_, Internal("rank {} sent an event that cannot be read: {}", rank, line));
      return;
    }
    const auto name = event["event"].get<std::string>();
    if (name == "error") {
      Fail(&error_, Unavailable("rank {}: {}", rank, event.value("message", "unknown")));
    } else {
      events_.Add(rank, name, event);
    }
  }
  void OnExit(const Children::Exit& exit) {
    if (exit.failed()) Fail(&exit_, Unavailable("{}", exit.Describe()));
  }
  // Whether there has been time enough to hear of the cause of a failure.
  bool settled() const { return failed_at_ && MonotonicClock().Now() > *failed_at_ + kBlameWindow; }
  Status status() const { return error_.ok() ? exit_ : error_; }

 private:
  void Fail(Status* slot, const Status& status) {
    if (slot->ok()) *slot = status;
    if (!failed_at_) failed_at_ = MonotonicClock().Now();
  }

  BenchEvents& events_;
  Status error_, exit_;
  std::optional<TimePoint> failed_at_;
};

// Over the transport itself: whole buffers, all at once.
Status ExchangeThrough(transport::Transport& transport, const PeerBuffers& out, PeerBuffers* in) {
  constexpr transport::Tag kRawTag = transport::kTagLimit - 0x3000;
  std::vector<transport::OpId> ops;
  for (auto& [peer, buffer] : *in) {
    DT_ASSIGN_OR_RETURN(const transport::OpId op, transport.Receive(peer, kRawTag, buffer));
    ops.push_back(op);
  }
  for (const auto& [peer, buffer] : out) {
    DT_ASSIGN_OR_RETURN(const transport::OpId op, transport.Send(peer, kRawTag, buffer));
    ops.push_back(op);
  }
  for (const transport::OpId op : ops) DT_RETURN_IF_ERROR(transport.Wait(op, kExchangeTimeout));
  return Status::Ok();
}

Result<BenchWire> ConnectThread(elastic::GroupFactory& factory, const std::vector<RankId>& ranks,
                                const std::vector<RankId>& peers) {
  BenchWire wire{.transport = {}, .exchange_raw = {}, .own_process = false};
  DT_ASSIGN_OR_RETURN(wire.transport, factory.MakeTransport("bench", ranks, peers, kJoinTimeout));
  wire.exchange_raw = [transport = wire.transport.get()](const PeerBuffers& out, PeerBuffers* in) {
    return ExchangeThrough(*transport, out, in);
  };
  return wire;
}

}  // namespace

Result<BenchEvents> RunBenchProcesses(const BenchOptions& options) {
  const BenchConfig& config = options.config;
  DT_ASSIGN_OR_RETURN(const auto logs, LogDirectory::Make(options.log_directory));
  DT_ASSIGN_OR_RETURN(
      const auto server,
      bridge::StoreServer::Start({options.bind.host, static_cast<uint16_t>(options.bind.port)}));
  const bridge::StoreAddress& address = server->address();
  const auto arguments = [&address](RankId rank) {
    return std::vector<std::string>{"bench-rank",
                                    "--rank",
                                    std::to_string(rank),
                                    "--store",
                                    fmt::format("{}:{}", address.host, address.port),
                                    "--launcher",
                                    std::to_string(::getpid())};
  };
  DT_ASSIGN_OR_RETURN(const auto children, Children::Spawn(0, config.num_ranks, arguments,
                                                           config.ToJson(), logs->path()));
  BenchEvents events;
  Follower follower(&events);
  while (children->any_running() && !follower.settled()) {
    children->Poll(
        kPollInterval, [&](RankId rank, const std::string& line) { follower.OnLine(rank, line); },
        [&](const Children::Exit& exit) { follower.OnExit(exit); });
  }
  children->Terminate(kTerminateGrace);
  if (follower.status().ok()) return events;
  logs->Keep();
  return follower.status().Within(fmt::format("bench (logs in {})", logs->path()));
}

Result<BenchEvents> RunBenchThreads(const BenchOptions& options) {
  const BenchConfig& config = options.config;
  elastic::LocalGroupHub hub;
  std::mutex mutex;  // guards what follows
  BenchEvents events;
  Status failed;
  std::vector<std::thread> threads;
  for (RankId rank = 0; rank < config.num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto factory = hub.FactoryOf(rank);
      const Status status = RunBenchRank(
          config, rank,
          [&factory](const std::vector<RankId>& ranks, const std::vector<RankId>& peers) {
            return ConnectThread(*factory, ranks, peers);
          },
          [&](std::string_view name, const json& fields) {
            const std::lock_guard lock(mutex);
            events.Add(rank, name, fields);
          });
      const std::lock_guard lock(mutex);
      if (failed.ok() && !status.ok()) failed = status.Within(fmt::format("rank {}", rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failed.ok()) return failed;
  return events;
}

}  // namespace dynatrain::apps
