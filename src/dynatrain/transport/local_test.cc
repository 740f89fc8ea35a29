#include "dynatrain/transport/local.h"

#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "dynatrain/transport/conformance.h"
#include "dynatrain/transport/faulty.h"

namespace dynatrain::transport {
namespace {

using namespace std::chrono_literals;

// `faults`: if there is a list, even an empty one, of a FaultyTransport around each rank's.
ConformanceFixture FixtureOf(LocalOptions options,
                             const std::optional<std::vector<Fault>>& faults = std::nullopt) {
  ConformanceFixture fixture;
  fixture.run = [options, faults](int n, const std::vector<RankId>& leavers, const RankBody& body) {
    std::vector<RankId> ranks;
    for (RankId rank = 0; rank < n; ++rank) ranks.push_back(rank);
    LocalHub hub(ranks, options);
    std::vector<std::unique_ptr<Transport>> transports;
    for (const RankId rank : ranks) {
      transports.push_back(hub.Connect(rank));
      if (!faults) continue;
      transports.back() = std::make_unique<FaultyTransport>(std::move(transports.back()), *faults);
    }
    std::vector<Status> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        results[i] = body(*transports[i]);
        const bool leaves = std::find(leavers.begin(), leavers.end(), ranks[i]) != leavers.end();
        if (leaves || !results[i].ok()) transports[i].reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  };
  return fixture;
}

class Conformance : public testing::TestWithParam<ConformanceCase> {};
TEST_P(Conformance, Rendezvous) { EXPECT_EQ(GetParam().run(FixtureOf({})).ToString(), "ok"); }
TEST_P(Conformance, Eager) {
  EXPECT_EQ(GetParam().run(FixtureOf({.rendezvous = false})).ToString(), "ok");
}
TEST_P(Conformance, TwoInFlightAdversarialShortMessages) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const LocalOptions options{.max_outstanding = 2, .max_message = 100'000, .timing_seed = seed};
    EXPECT_EQ(GetParam().run(FixtureOf(options)).ToString(), "ok");
  }
}
// The wrapper that injects faults keeps the contract of what it wraps while it injects none, or
// nothing but delays.
TEST_P(Conformance, WrappedWithoutFaults) {
  using Faults = std::vector<Fault>;
  EXPECT_EQ(GetParam().run(FixtureOf({}, Faults{})).ToString(), "ok");
  const LocalOptions options{.max_outstanding = 2, .max_message = 100'000, .timing_seed = 4};
  EXPECT_EQ(GetParam().run(FixtureOf(options, Faults{})).ToString(), "ok");
}
TEST_P(Conformance, WrappedWithDelays) {
  const std::vector<Fault> faults = {{Fault::Kind::kDelay, 0, 0, 2ms},
                                     {Fault::Kind::kDelay, 3, 0, 5ms}};
  EXPECT_EQ(GetParam().run(FixtureOf({.rendezvous = false}, faults)).ToString(), "ok");
}
INSTANTIATE_TEST_SUITE_P(Local, Conformance, testing::ValuesIn(ConformanceCases()),
                         CaseName<testing::TestParamInfo<ConformanceCase>>);

std::vector<std::byte> Bytes(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

// C26: the peer is the rank itself, never a position among the ranks.
TEST(LocalHub, RanksAreIdentitiesNotPositions) {
  for (const std::vector<RankId>& ranks : {std::vector<RankId>{1, 3}, {3, 1}}) {
    LocalHub hub(ranks);
    const auto one = hub.Connect(1);
    const auto three = hub.Connect(3);
    const auto data = Bytes({1, 2, 3});
    std::vector<std::byte> got(3);
    const auto receive = three->Receive(1, 0, got);
    const auto send = one->Send(3, 0, data);
    ASSERT_TRUE(receive.ok() && send.ok());
    EXPECT_TRUE(three->Wait(*receive, 5s).ok());
    EXPECT_TRUE(one->Wait(*send, 5s).ok());
    EXPECT_EQ(got, data);
    EXPECT_EQ(one->Send(0, 0, data).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(LocalHub, RendezvousSendWaitsForItsReceive) {
  LocalHub hub({0, 1});
  const auto sender = hub.Connect(0);
  const auto receiver = hub.Connect(1);
  const auto data = Bytes({7});
  const auto op = sender->Send(1, 0, data);
  EXPECT_EQ(sender->Wait(*op, 10ms).code(), StatusCode::kDeadlineExceeded);
}

TEST(LocalHub, AMessageThatWasBufferedOutlivesItsSender) {
  LocalHub hub({0, 1}, {.rendezvous = false});
  const auto receiver = hub.Connect(1);
  const auto data = Bytes({7, 8});
  {
    const auto sender = hub.Connect(0);
    ASSERT_TRUE(sender->Wait(*sender->Send(1, 0, data), 5s).ok());
  }
  std::vector<std::byte> got(2);
  const auto op = receiver->Receive(0, 0, got);
  ASSERT_TRUE(op.ok()) << op.status().ToString();
  EXPECT_TRUE(receiver->Wait(*op, 5s).ok());
  EXPECT_EQ(got, data);
}

TEST(LocalHub, KillFailsBothSides) {
  LocalHub hub({0, 1});
  const auto zero = hub.Connect(0);
  const auto one = hub.Connect(1);
  std::vector<std::byte> got(2);
  const auto op = zero->Receive(1, 0, got);
  const auto own = one->Receive(0, 1, got);
  hub.Kill(1);
  EXPECT_EQ(zero->Wait(*op, 5s).code(), StatusCode::kUnavailable);
  EXPECT_EQ(one->Wait(*own, 5s).code(), StatusCode::kUnavailable);
}

struct Sent {
  Status status;
  std::vector<std::vector<std::byte>> got;
};

// Sends {1, 2} and {3, 4} with equal tags over a faulty transport.
Sent SendTwo(std::vector<Fault> faults) {
  LocalHub hub({0, 1}, {.rendezvous = false});
  FaultyTransport sender(hub.Connect(0), std::move(faults));
  const auto receiver = hub.Connect(1);
  const auto a = Bytes({1, 2});
  const auto b = Bytes({3, 4});
  Sent sent;
  std::vector<OpId> ops;
  for (const auto* data : {&a, &b}) {
    const auto op = sender.Send(1, 0, *data);
    if (!op.ok()) return {op.status(), {}};
    ops.push_back(*op);
  }
  for (const OpId op : ops) EXPECT_TRUE(sender.Wait(op, 5s).ok());
  for (int i = 0; i < 2; ++i) {
    std::vector<std::byte> got(2);
    const auto op = receiver->Receive(0, 0, got);
    sent.status = op.ok() ? receiver->Wait(*op, 50ms) : op.status();
    if (!sent.status.ok()) return sent;
    sent.got.push_back(got);
  }
  return sent;
}

TEST(FaultyTransport, InjectsWhatItIsTold) {
  const auto a = Bytes({1, 2});
  const auto b = Bytes({3, 4});
  using Messages = std::vector<std::vector<std::byte>>;
  EXPECT_EQ(SendTwo({}).got, (Messages{a, b}));
  EXPECT_EQ(SendTwo({{Fault::Kind::kReorder, 0}}).got, (Messages{b, a}));
  EXPECT_EQ(SendTwo({{Fault::Kind::kDuplicate, 0}}).got, (Messages{a, a}));
  EXPECT_EQ(SendTwo({{Fault::Kind::kDelay, 0, 0, 1ms}}).got, (Messages{a, b}));
  EXPECT_EQ(SendTwo({{Fault::Kind::kDrop, 0}}).status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(SendTwo({{Fault::Kind::kTruncate, 1}}).status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(SendTwo({{Fault::Kind::kFail, 1}}).status.code(), StatusCode::kUnavailable);
  const Sent flipped = SendTwo({{Fault::Kind::kFlipBit, 1, 5}});
  ASSERT_EQ(flipped.got.size(), 2U);
  EXPECT_EQ(flipped.got[0], a);
  int bits = 0;
  for (size_t i = 0; i < 2; ++i) {
    bits += __builtin_popcount(std::to_integer<unsigned>(flipped.got[1][i] ^ b[i]));
  }
  EXPECT_EQ(bits, 1);
}

TEST(FaultyTransport, DeathIsToldAndEndsTheTransport) {
  LocalHub hub({0, 1});
  bool died = false;
  FaultyTransport dying(hub.Connect(0), {{Fault::Kind::kDie, 0}}, [&died] { died = true; });
  const auto data = Bytes({1});
  EXPECT_FALSE(dying.Send(1, 0, data).ok());
  EXPECT_TRUE(died);
  EXPECT_FALSE(dying.Send(1, 0, data).ok());
}

}  // namespace
}  // namespace dynatrain::transport
