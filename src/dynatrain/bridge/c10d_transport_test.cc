// The transport contract over Gloo, with ranks that are threads and ranks that are processes; and
// what only Gloo can get wrong.
#include "dynatrain/bridge/c10d_transport.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dynatrain/bridge/c10d_groups.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/bridge/fence.h"
#include "dynatrain/bridge/process_harness.h"
#include "dynatrain/transport/conformance.h"

namespace dynatrain::bridge {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using transport::ConformanceCase;
using transport::ConformanceFixture;
using transport::OpId;
using transport::RankBody;
using transport::Transport;

constexpr seconds kTimeout{30};
const GlooOptions kLoopback = {.interface = "lo"};

bool Contains(const std::vector<RankId>& ranks, RankId rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<RankId> FirstRanks(int n) {
  std::vector<RankId> ranks;
  for (RankId rank = 0; rank < n; ++rank) ranks.push_back(rank);
  return ranks;
}

// Runs `body` on the members of `ranks` that are in this process. `all_returned` waits for the
// others.
Status RunRank(GlooGroupFactory& factory, const std::string& epoch,
               const std::vector<RankId>& ranks, bool leaver, const RankBody& body,
               const std::function<void(const Status&)>& all_returned) {
  auto made = factory.MakeTransport(epoch, ranks, {}, kTimeout);
  if (!made.ok()) {
    all_returned(made.status());
    return made.status();
  }
  std::unique_ptr<Transport> transport = *std::move(made);
  const Status status = body(*transport);
  if (leaver || !status.ok()) transport.reset();
  all_returned(status);
  return status;
}

// Every rank a thread.
std::vector<Status> RunThreads(const std::vector<RankId>& ranks, const std::vector<RankId>& leavers,
                               const RankBody& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Status> results(ranks.size());
  std::atomic<size_t> returned = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      auto factory = GlooGroupFactory::Make(ranks[i], store, kLoopback).value();
      results[i] =
          RunRank(*factory, "0", ranks, Contains(leavers, ranks[i]), body, [&](const Status&) {
            ++returned;
            returned.notify_all();
            for (size_t seen = returned; seen < ranks.size(); seen = returned) returned.wait(seen);
          });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

class GlooThreads : public testing::TestWithParam<ConformanceCase> {};

TEST_P(GlooThreads, KeepsTheContract) {
  const ConformanceFixture fixture = {
      .run = [](int n, const std::vector<RankId>& leavers, const RankBody& body) {
        return RunThreads(FirstRanks(n), leavers, body);
      }};
  EXPECT_EQ(GetParam().run(fixture).ToString(), "ok");
}

INSTANTIATE_TEST_SUITE_P(Conformance, GlooThreads, testing::ValuesIn(transport::ConformanceCases()),
                         transport::CaseName<testing::TestParamInfo<ConformanceCase>>);

// Every rank a process; results travel through the store.
class ProcessFixture {
 public:
  ProcessFixture(RankId rank, const StoreAddress& address)
      : rank_(rank),
        store_(ConnectStore(address, kTimeout).value()),
        factory_(GlooGroupFactory::Connect(rank, address, kLoopback, kTimeout).value()) {}

  std::vector<Status> Run(const std::string& name, int n, const std::vector<RankId>& leavers,
                          const RankBody& body) {
    const std::string run = name + "/" + std::to_string(runs_++);
    std::vector<Status> results;
    auto all_returned = [&](const Status& mine) { results = Exchange(run, n, mine); };
    if (rank_ < n) {
      static_cast<void>(
          RunRank(*factory_, run, FirstRanks(n), Contains(leavers, rank_), body, all_returned)
              .ok());
    } else {
      all_returned({});
    }
    return results;
  }

 private:
  std::vector<Status> Exchange(const std::string& run, int n, const Status& mine) {
    std::vector<Status> results;
    auto key = [&](RankId rank) { return fmt::format("result/{}/{}", run, rank); };
    const std::string told = fmt::format("{} {}", static_cast<int>(mine.code()), mine.message());
    if (rank_ < n) DT_CHECK(store_->Set(key(rank_), told).ok());
    for (RankId rank = 0; rank < n; ++rank) {
      const std::string text = store_->Wait(key(rank), kTimeout).value();
      const auto code = static_cast<StatusCode>(std::stoi(text));
      results.push_back(code == StatusCode::kOk ? Status::Ok()
                                                : Status(code, text.substr(text.find(' ') + 1)));
    }
    return results;
  }

  const RankId rank_;
  std::unique_ptr<elastic::Store> store_;
  std::unique_ptr<GlooGroupFactory> factory_;
  int runs_ = 0;
};

int Conformance(const ChildArgs& child) {
  ProcessFixture processes(child.rank,
                           {child.values[0], static_cast<uint16_t>(std::stoi(child.values[1]))});
  int failures = 0;
  for (const ConformanceCase& c : transport::ConformanceCases()) {
    const ConformanceFixture fixture = {
        .run = [&](int n, const std::vector<RankId>& leavers, const RankBody& body) {
          return processes.Run(c.name, n, leavers, body);
        }};
    const Status status = c.run(fixture);
    std::printf("%s: %s\n", c.name.c_str(), status.ToString().c_str());
    failures += status.ok() ? 0 : 1;
  }
  return failures;
}

TEST(GlooProcesses, KeepTheContract) {
  auto server = StoreServer::Start({"127.0.0.1", 0}).value();
  EXPECT_TRUE(
      RunProcesses({.body = "Conformance",
                    .ranks = 4,
                    .values = {server->address().host, std::to_string(server->address().port)}}));
}

// The rank's own number over and over, so that a message that went astray shows.
std::vector<std::byte> Signed(RankId from, RankId to, size_t bytes) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(16 * from + to));
}

// Every rank sends to every other one.
Status ExchangeAll(Transport& t) {
  std::vector<std::vector<std::byte>> in;
  std::vector<std::vector<std::byte>> out;
  std::vector<OpId> ops;
  for (const RankId peer : t.ranks()) {
    if (peer == t.rank()) continue;
    DT_ASSIGN_OR_RETURN(const OpId op, t.Receive(peer, 1, in.emplace_back(1000)));
    ops.push_back(op);
  }
  for (const RankId peer : t.ranks()) {
    if (peer == t.rank()) continue;
    DT_ASSIGN_OR_RETURN(const OpId op,
                        t.Send(peer, 1, out.emplace_back(Signed(t.rank(), peer, 1000))));
    ops.push_back(op);
  }
  for (const OpId op : ops) DT_RETURN_IF_ERROR(t.Wait(op, kTimeout));
  size_t next = 0;
  for (const RankId peer : t.ranks()) {
    if (peer == t.rank()) continue;
    if (in[next++] != Signed(peer, t.rank(), 1000))
      return DataLoss("{} <- {}: another's bytes", t.rank(), peer);
  }
  return {};
}

// Case C26: in these sets a rank's number is not its position.
TEST(C10dTransport, PeersAreRanksAndNotPositions) {
  for (const std::vector<RankId>& ranks : {std::vector<RankId>{1, 3}, {3, 1}, {2, 0}, {3, 0, 2}}) {
    for (const Status& status : RunThreads(ranks, {}, ExchangeAll))
      EXPECT_EQ(status.ToString(), "ok");
  }
}

TEST(C10dTransport, ARankOutsideTheSetIsRefusedByName) {
  const auto results = RunThreads({3, 1}, {}, [](Transport& t) -> Status {
    std::vector<std::byte> data(8);
    return t.Send(0, 1, data).status();
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr("-> 0"));
    EXPECT_THAT(status.message(), testing::HasSubstr("3,1"));
  }
}

// Case C28: Gloo by itself ends the process if more comes than was expected, and tells nothing if
// less does.
TEST(C10dTransport, EveryLengthMismatchIsDataLossAtTheReceiver) {
  constexpr size_t kMiB = size_t{1} << 20;
  const std::vector<std::pair<size_t, size_t>> sent_and_expected = {{1, 2},
                                                                    {2, 1},
                                                                    {kMiB, 1},
                                                                    {1, kMiB},
                                                                    {kMiB + 1, kMiB},
                                                                    {kMiB, kMiB + 1},
                                                                    {5 * kMiB + 3, 5 * kMiB}};
  for (const auto& [sent, expected] : sent_and_expected) {
    // They outlive the transports, which may be at them after an error.
    const std::vector<std::byte> outgoing(sent);
    std::vector<std::byte> incoming(expected);
    const auto results = RunThreads({0, 1}, {}, [&](Transport& t) -> Status {
      DT_ASSIGN_OR_RETURN(const OpId op,
                          t.rank() == 0 ? t.Send(1, 3, outgoing) : t.Receive(0, 3, incoming));
      return t.Wait(op, t.rank() == 0 ? Duration(milliseconds(200)) : kTimeout);
    });
    EXPECT_EQ(results[1].code(), StatusCode::kDataLoss)
        << sent << " " << expected << results[1].ToString();
  }
}

TEST(C10dTransport, AnEarlierMessageOfTheWrongLengthDoesNotCrashLaterOnes) {
  // The later one of a length that is in the earlier ones too, or of none.
  for (const size_t later : {size_t{1} << 20, size_t{64}}) {
    const std::vector<std::byte> out_a(3u << 20), out_b(later);
    std::vector<std::byte> in_a(1u << 20), in_b(later);
    const auto results = RunThreads({0, 1}, {}, [&](Transport& t) -> Status {
      const bool sends = t.rank() == 0;
      DT_ASSIGN_OR_RETURN(const OpId first, sends ? t.Send(1, 3, out_a) : t.Receive(0, 3, in_a));
      DT_ASSIGN_OR_RETURN(const OpId second, sends ? t.Send(1, 3, out_b) : t.Receive(0, 3, in_b));
      const Status status = t.Wait(second, milliseconds(200));
      static_cast<void>(t.Wait(first, milliseconds(200)).ok());
      return status;
    });
    EXPECT_FALSE(results[1].ok()) << later;
  }
}

TEST(C10dTransport, WithoutInterfaceOrAddressThereIsAClearRefusal) {
  const Status status =
      GlooGroupFactory::Make(0, c10::make_intrusive<c10d::HashStore>(), {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  const Status unknown =
      GlooGroupFactory::Make(0, c10::make_intrusive<c10d::HashStore>(), {.interface = "no-such-if"})
          .status();
  EXPECT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.message(), testing::HasSubstr("no-such-if"));
}

}  // namespace
}  // namespace dynatrain::bridge

int main(int argc, char** argv) {
  dynatrain::bridge::SilenceTorchLog();
  return dynatrain::bridge::HarnessMain(argc, argv,
                                        {{"Conformance", dynatrain::bridge::Conformance}});
}
