// The process of one rank of `dynatrain bench`, over Gloo: the hidden subcommand `bench-rank`.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "dynatrain/apps/bench_rank.h"
#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/control.h"
#include "dynatrain/apps/rank_process.h"
#include "dynatrain/bridge/c10d_groups.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/bridge/raw_exchange.h"

namespace dynatrain::apps {
namespace {

constexpr Duration kJoinTimeout = std::chrono::seconds(60);
constexpr Duration kExchangeTimeout = std::chrono::seconds(120);
constexpr ByteCount kRawChunkBytes = ByteCount{4} << 20;

struct BenchRankFlags {
  RankId rank = 0;
  std::string store;
  pid_t launcher = 0;
};

// This thread and those that it starts later live in the network namespace `name` from now on.
Status EnterNamespace(const std::string& name) {
  const std::string path = "/run/netns/" + name;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NotFound("network namespace {}: {}", name, std::strerror(errno));
  const int entered = ::setns(fd, CLONE_NEWNET);
  const int error = errno;
  ::close(fd);
  if (entered == 0) return Status::Ok();
  return FailedPrecondition("network namespace {}: {}; it needs root", name, std::strerror(error));
}

// The raw exchange has a group of its own.
Result<BenchWire> ConnectGloo(bridge::GlooGroupFactory& factory, const std::vector<RankId>& ranks,
                              const std::vector<RankId>& peers) {
  BenchWire wire;
  DT_ASSIGN_OR_RETURN(wire.transport, factory.MakeTransport("bench", ranks, peers, kJoinTimeout));
  DT_ASSIGN_OR_RETURN(std::shared_ptr<elastic::Group> group,
                      factory.MakeGroup("bench", {"world", "raw", ranks}, kJoinTimeout));
  wire.exchange_raw = [group, ranks](const PeerBuffers& out, PeerBuffers* in) {
    const auto position = [&ranks](RankId rank) {
      return static_cast<int>(std::ranges::lower_bound(ranks, rank) - ranks.begin());
    };
    std::map<int, ConstByteSpan> sends;
    std::map<int, ByteSpan> receives;
    for (const auto& [peer, buffer] : out) sends[position(peer)] = buffer;
    for (auto& [peer, buffer] : *in) receives[position(peer)] = buffer;
    return bridge::ExchangeRaw(*bridge::BackendOf(*group), sends, receives, kRawChunkBytes,
                               kExchangeTimeout);
  };
  return wire;
}

Status Run(const BenchRankFlags& flags, const std::string& config_text, EventWriter* events) {
  DT_ASSIGN_OR_RETURN(const BenchConfig config, BenchConfig::FromJson(config_text));
  if (!config.namespaces.empty()) {
    DT_RETURN_IF_ERROR(EnterNamespace(config.namespaces[static_cast<size_t>(flags.rank)]));
  }
  DT_ASSIGN_OR_RETURN(const Address address, ParseAddress(flags.store));
  const bridge::StoreAddress store{address.host, static_cast<uint16_t>(address.port)};
  DT_ASSIGN_OR_RETURN(
      const std::unique_ptr<bridge::GlooGroupFactory> factory,
      bridge::GlooGroupFactory::Connect(
          flags.rank, store, {.interface = config.interface, .address = ""}, kJoinTimeout));
  const auto connect = [&factory](const std::vector<RankId>& ranks,
                                  const std::vector<RankId>& peers) {
    return ConnectGloo(*factory, ranks, peers);
  };
  const auto tell = [events](std::string_view name, nlohmann::json fields) {
    events->Write(name, std::move(fields));
  };
  return RunBenchRank(config, flags.rank, connect, tell);
}

}  // namespace

void AddBenchRankCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("bench-rank", "one rank of a benchmark (see `bench`)");
  command->group("");  // hidden
  auto flags = std::make_shared<BenchRankFlags>();
  command->add_option("--rank", flags->rank)->required();
  command->add_option("--store", flags->store)->required();
  command->add_option("--launcher", flags->launcher)->required();
  command->callback([flags, exit_code] {
    *exit_code = RunRankProcess(flags->rank, flags->launcher,
                                [flags](const std::string& config, EventWriter* events) {
                                  return Run(*flags, config, events);
                                });
  });
}

}  // namespace dynatrain::apps
