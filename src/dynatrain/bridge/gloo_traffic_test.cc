// Cases C14, C25 and C28 over Gloo with ranks that are processes: everyone sends to all others, in
// numbers and sizes that differ by pair, and what comes is compared byte by byte; then lengths that
// do not match.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dynatrain/base/hash.h"
#include "dynatrain/base/random.h"
#include "dynatrain/bridge/c10d_groups.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/bridge/fence.h"
#include "dynatrain/bridge/process_harness.h"

namespace dynatrain::bridge {
namespace {

using transport::OpId;
using transport::Tag;
using transport::Transport;

constexpr std::chrono::seconds kTimeout{30};
// A sender whose peer is gone may be told by its deadline alone.
constexpr std::chrono::seconds kMismatchTimeout{3};
constexpr int64_t kMiB = int64_t{1} << 20;
const GlooOptions kLoopback = {.interface = "lo"};

using Bytes = std::vector<std::byte>;

// One message of a pair. Equal tags repeat: those match in the order of posting.
struct Message {
  Tag tag = 0;
  int64_t bytes = 0;
};

// What `from` sends to `to`, a function of the pair alone: between nothing and 500 messages, small
// ones among some of up to 8 MiB, some empty.
std::vector<Message> TrafficOf(uint64_t seed, RankId from, RankId to) {
  Random random(Hasher().Add(seed).Add(from).Add(to).hash());
  if (random.OneIn(6)) return {};
  const std::vector<int64_t> large = {8 * kMiB, 5 * kMiB + 3, kMiB, kMiB - 1, (kMiB >> 2) + 1};
  const int64_t count = random.OneIn(3) ? 500 : random.Between(1, 60);
  const int64_t big = random.Between(0, count - 1);
  std::vector<Message> messages;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t small = random.OneIn(9) ? 0 : random.Between(1, 300) * (random.OneIn(4) ? 33 : 4);
    const auto pick =
        static_cast<size_t>(random.Between(0, static_cast<int64_t>(large.size()) - 1));
    messages.push_back({static_cast<Tag>(random.Between(0, 4)), i == big ? large[pick] : small});
  }
  return messages;
}

Bytes ContentOf(uint64_t seed, RankId from, RankId to, size_t number, int64_t bytes) {
  Random random(Hasher().Add(seed).Add(from).Add(to).Add(number).hash());
  Bytes content(static_cast<size_t>(bytes));
  uint64_t word = 0;
  for (size_t i = 0; i < content.size(); ++i) {
    if (i % 8 == 0) word = random();
    content[i] = static_cast<std::byte>(word >> (8 * (i % 8)));
  }
  return content;
}

// The messages between this rank and the others, in both directions.
struct Traffic {
  std::vector<Bytes> in, out;
  std::vector<OpId> ops;

  Status PostReceives(Transport& t, uint64_t seed) {
    for (const RankId peer : t.ranks()) {
      if (peer == t.rank()) continue;
      for (const Message& m : TrafficOf(seed, peer, t.rank())) {
        in.emplace_back(static_cast<size_t>(m.bytes));
        DT_ASSIGN_OR_RETURN(const OpId op, t.Receive(peer, m.tag, in.back()));
        ops.push_back(op);
      }
    }
    return {};
  }
  Status PostSends(Transport& t, uint64_t seed) {
    // Every rank begins at another peer, half of them backwards.
    std::vector<RankId> peers = t.ranks();
    std::ranges::rotate(peers, std::ranges::find(peers, t.rank()));
    if (t.rank() % 2 == 1) std::reverse(peers.begin() + 1, peers.end());
    for (const RankId peer : peers) {
      if (peer == t.rank()) continue;
      size_t number = 0;
      for (const Message& m : TrafficOf(seed, t.rank(), peer)) {
        out.push_back(ContentOf(seed, t.rank(), peer, number++, m.bytes));
        DT_ASSIGN_OR_RETURN(const OpId op, t.Send(peer, m.tag, out.back()));
        ops.push_back(op);
      }
    }
    return {};
  }
  Status Check(const Transport& t, uint64_t seed) const {
    size_t next = 0;
    for (const RankId peer : t.ranks()) {
      if (peer == t.rank()) continue;
      size_t number = 0;
      for (const Message& m : TrafficOf(seed, peer, t.rank())) {
        if (in[next++] != ContentOf(seed, peer, t.rank(), number, m.bytes)) {
          return DataLoss("seed {}: message {} of {} <- {} ({} bytes, tag {}) has other bytes",
                          seed, number, t.rank(), peer, m.bytes, m.tag);
        }
        ++number;
      }
    }
    return {};
  }
};

Status EveryoneToAll(Transport& t, uint64_t seed) {
  Traffic traffic;
  // Receives come first on some ranks, sends on the others.
  const bool receives_first = (t.rank() + seed) % 2 == 0;
  if (receives_first) DT_RETURN_IF_ERROR(traffic.PostReceives(t, seed));
  DT_RETURN_IF_ERROR(traffic.PostSends(t, seed));
  if (!receives_first) DT_RETURN_IF_ERROR(traffic.PostReceives(t, seed));
  for (const OpId op : traffic.ops) DT_RETURN_IF_ERROR(t.Wait(op, kTimeout));
  return traffic.Check(t, seed);
}

StoreAddress StoreOf(const ChildArgs& child) {
  return {child.values[0], static_cast<uint16_t>(std::atoi(child.values[1].c_str()))};
}

int Everyone(const ChildArgs& child) {
  auto factory = GlooGroupFactory::Connect(child.rank, StoreOf(child), kLoopback, kTimeout).value();
  std::vector<RankId> ranks;
  for (RankId rank = 0; rank < child.ranks; ++rank) ranks.push_back(rank);
  std::vector<RankId> peers = ranks;
  std::erase(peers, child.rank);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    // A group for each: the ranks list their order of positions differently.
    std::ranges::rotate(ranks, ranks.begin() + 1);
    auto t = factory->MakeTransport(fmt::format("{}", seed), ranks, peers, kTimeout).value();
    const Status status = EveryoneToAll(*t, seed);
    std::printf("seed %d: %s\n", static_cast<int>(seed), status.ToString().c_str());
    if (!status.ok()) return 1;
  }
  return 0;
}

// A store for the processes of one test.
class GlooTraffic : public testing::Test {
 protected:
  testing::AssertionResult Run(const std::string& body, int ranks,
                               const std::vector<std::string>& more = {}) {
    std::vector<std::string> values = {server_->address().host,
                                       std::to_string(server_->address().port)};
    values.insert(values.end(), more.begin(), more.end());
    return RunProcesses({.body = body, .ranks = ranks, .values = values});
  }
  std::unique_ptr<StoreServer> server_ = StoreServer::Start({"127.0.0.1", 0}).value();
};

TEST_F(GlooTraffic, EveryoneSendsToAllAmongThree) { EXPECT_TRUE(Run("Everyone", 3)); }
TEST_F(GlooTraffic, EveryoneSendsToAllAmongFour) { EXPECT_TRUE(Run("Everyone", 4)); }
TEST_F(GlooTraffic, EveryoneSendsToAllAmongFive) { EXPECT_TRUE(Run("Everyone", 5)); }

// The seeds above do meet what they are there for.
TEST(TrafficOfTest, HasEverySortOfPair) {
  int64_t none = 0, full = 0, empty = 0, largest = 0, uneven = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (RankId from = 0; from < 5; ++from) {
      for (RankId to = 0; to < 5; ++to) {
        if (from == to) continue;
        const std::vector<Message> messages = TrafficOf(seed, from, to);
        none += messages.empty();
        full += messages.size() == 500;
        uneven += messages.size() != TrafficOf(seed, to, from).size();
        for (const Message& m : messages) {
          empty += m.bytes == 0;
          largest = std::max(largest, m.bytes);
        }
      }
    }
  }
  EXPECT_GT(none, 0);
  EXPECT_GT(full, 0);
  EXPECT_GT(empty, 0);
  EXPECT_GT(uneven, 0);
  EXPECT_EQ(largest, 8 * kMiB);
}

// Both sides of a message whose lengths differ: each ends with an error, and as a process by itself.
// The receiver is told at once; the sender when it next hears from a receiver that gave up. The
// buffers outlive `t`, which may still be reading and writing them after an error.
Status Mismatched(Transport& t, Bytes& data, Bytes& answer) {
  if (t.rank() == 1) {
    DT_ASSIGN_OR_RETURN(const OpId op, t.Receive(0, 3, data));
    DT_RETURN_IF_ERROR(t.Wait(op, kMismatchTimeout));
    DT_ASSIGN_OR_RETURN(const OpId ack, t.Send(0, 4, answer));
    return t.Wait(ack, kMismatchTimeout);
  }
  DT_ASSIGN_OR_RETURN(const OpId ack, t.Receive(1, 4, answer));
  DT_ASSIGN_OR_RETURN(const OpId op, t.Send(1, 3, data));
  DT_RETURN_IF_ERROR(t.Wait(op, kMismatchTimeout));
  return t.Wait(ack, kMismatchTimeout);
}

int Mismatch(const ChildArgs& child) {
  auto factory = GlooGroupFactory::Connect(child.rank, StoreOf(child), kLoopback, kTimeout).value();
  const std::vector<std::pair<int64_t, int64_t>> lengths = {{1, 2},
                                                            {2, 1},
                                                            {kMiB, 1},
                                                            {1, kMiB},
                                                            {kMiB + 1, kMiB},
                                                            {5 * kMiB + 3, 5 * kMiB},
                                                            {5 * kMiB, 5 * kMiB + 3},
                                                            {5 * kMiB + 3, 5 * kMiB + 3}};
  int wrong = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto [sent, expected] = lengths[i];
    Bytes data(static_cast<size_t>(child.rank == 0 ? sent : expected)), answer(8);
    Status status;
    {
      const auto t =
          factory->MakeTransport(fmt::format("{}", i), {0, 1}, {1 - child.rank}, kTimeout).value();
      status = Mismatched(*t, data, answer);
    }
    std::printf("%ld sent, %ld expected: %s\n", static_cast<long>(sent),
                static_cast<long>(expected), status.ToString().c_str());
    const bool equal = sent == expected;
    wrong += status.ok() != equal;
    if (child.rank == 1 && !equal) wrong += status.code() != StatusCode::kDataLoss;
  }
  return wrong;
}

TEST_F(GlooTraffic, AMessageOfAnotherLengthIsAnErrorOnBothSides) {
  EXPECT_TRUE(Run("Mismatch", 2));
}

}  // namespace
}  // namespace dynatrain::bridge

int main(int argc, char** argv) {
  dynatrain::bridge::SilenceTorchLog();
  return dynatrain::bridge::HarnessMain(
      argc, argv,
      {{"Everyone", dynatrain::bridge::Everyone}, {"Mismatch", dynatrain::bridge::Mismatch}});
}
