// Groups over their whole life: many generations, shrinking memberships, delays, missing members,
// early leavers.
#include "dynatrain/bridge/c10d_groups.h"

#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dynatrain/base/random.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/bridge/fence.h"
#include "dynatrain/bridge/process_harness.h"

namespace dynatrain::bridge {
namespace {

using elastic::Group;
using elastic::GroupSpec;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr seconds kTimeout{30};
constexpr uint64_t kSeed = 20240229;
const GlooOptions kLoopback = {.interface = "lo"};

// Prints what failed and ends the child.
#define REQUIRE(condition, ...)                                  \
  do {                                                           \
    if (!(condition)) {                                          \
      std::printf("%s:%d %s: ", __FILE__, __LINE__, #condition); \
      std::printf("%s\n", fmt::format(__VA_ARGS__).c_str());     \
      return 1;                                                  \
    }                                                            \
  } while (false)

StoreAddress AddressIn(const ChildArgs& child) {
  return {child.values.at(0), static_cast<uint16_t>(std::stoi(child.values.at(1)))};
}

std::unique_ptr<GlooGroupFactory> FactoryOf(const ChildArgs& child) {
  return GlooGroupFactory::Connect(child.rank, AddressIn(child), kLoopback, kTimeout).value();
}

GroupSpec Spec(std::string axis, int number, std::vector<RankId> ranks) {
  return {.axis = axis, .name = fmt::format("{}.{}", axis, number), .ranks = std::move(ranks)};
}

// Ok if an allreduce of rank + 1 over the group gives what its members add up to.
Status CheckSum(const Group& group, RankId rank) {
  std::vector<at::Tensor> value = {at::full({100}, rank + 1, at::kLong)};
  DT_RETURN_IF_ERROR(Fence(group.spec().name, [&] { BackendOf(group)->allreduce(value)->wait(); }));
  int64_t want = 0;
  for (const RankId member : group.spec().ranks) want += member + 1;
  if (at::equal(value[0], at::full({100}, want, at::kLong))) return {};
  return DataLoss("{}: sum is not {}", group.spec().name, want);
}

int64_t Entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}

// Makes `specs`, uses each, lets go of them.
Status OneGeneration(GlooGroupFactory& factory, const std::string& epoch,
                     const std::vector<GroupSpec>& specs, RankId rank) {
  std::vector<std::shared_ptr<Group>> groups;
  for (const GroupSpec& spec : specs) {
    DT_ASSIGN_OR_RETURN(groups.emplace_back(), factory.MakeGroup(epoch, spec, kTimeout));
  }
  for (const auto& group : groups) DT_RETURN_IF_ERROR(CheckSum(*group, rank));
  return {};
}

// Case C22: TP2 x DP2 and DP4 in turn, with the transport of the switch between them.
int Generations(const ChildArgs& child) {
  auto factory = FactoryOf(child);
  const RankId rank = child.rank;
  const std::vector<RankId> all = {0, 1, 2, 3};
  const std::vector<GroupSpec> tp2_dp2 = {Spec("world", 0, all),
                                          Spec("tp", rank / 2, {rank & 2, (rank & 2) + 1}),
                                          Spec("dp", rank % 2, {rank & 1, (rank & 1) + 2})};
  const std::vector<GroupSpec> dp4 = {Spec("world", 0, all), Spec("dp", 0, all)};
  int64_t files = 0;
  int64_t threads = 0;
  for (int generation = 0; generation < 30; ++generation) {
    const std::string epoch = std::to_string(generation);
    const Status status = OneGeneration(*factory, epoch, generation % 2 == 0 ? tp2_dp2 : dp4, rank);
    REQUIRE(status.ok(), "generation {}: {}", generation, status.ToString());
    std::vector<RankId> peers = all;
    peers.erase(peers.begin() + rank);
    auto transport = factory->MakeTransport(epoch, all, peers, kTimeout);
    REQUIRE(transport.ok(), "generation {}: {}", generation, transport.status().ToString());
    transport->reset();
    factory->Drain();
    const int64_t files_now = Entries("/proc/self/fd");
    const int64_t threads_now = Entries("/proc/self/task");
    if (generation == 4) {
      files = files_now;
      threads = threads_now;
    }
    if (generation > 4) {
      REQUIRE(files_now <= files, "generation {}: {} descriptors, {} before", generation, files_now,
              files);
      REQUIRE(threads_now <= threads, "generation {}: {} threads, {} before", generation,
              threads_now, threads);
    }
  }
  return 0;
}

// Case C23: a generation's members start at random times; the last generation has one member fewer.
int Regrouping(const ChildArgs& child) {
  auto factory = FactoryOf(child);
  Random random(kSeed + static_cast<uint64_t>(child.rank));
  for (int generation = 0; generation < 4; ++generation) {
    std::this_thread::sleep_for(milliseconds(random() % 50));
    const std::vector<RankId> members =
        generation < 3 ? std::vector<RankId>{0, 1, 2, 3} : std::vector<RankId>{0, 1, 3};
    if (generation == 3 && child.rank == 2) break;
    const Status status =
        OneGeneration(*factory, std::to_string(generation), {Spec("dp", 0, members)}, child.rank);
    REQUIRE(status.ok(), "seed {} generation {}: {}", kSeed, generation, status.ToString());
  }
  if (child.rank != 2) return 0;
  // Too late for generation 2: its name is no way into any other.
  auto late = factory->MakeGroup("2", Spec("dp", 0, {0, 1, 2, 3}), milliseconds(200));
  REQUIRE(late.status().code() == StatusCode::kDeadlineExceeded, "{}", late.status().ToString());
  REQUIRE(late.status().message().find("ranks 0,1,3 did not come") != std::string::npos, "{}",
          late.status().ToString());
  return 0;
}

// Case C24: only members make a group, all at their own pace.
int MembersOnly(const ChildArgs& child) {
  auto factory = FactoryOf(child);
  const RankId rank = child.rank;
  const int row = rank / 3;
  const int column = rank % 3;
  const std::vector<GroupSpec> specs = {Spec("row", row, {3 * row, 3 * row + 1, 3 * row + 2}),
                                        Spec("column", column, {column, column + 3})};
  Random random(kSeed + static_cast<uint64_t>(rank));
  for (int round = 0; round < 40; ++round) {
    std::this_thread::sleep_for(milliseconds(random() % 20));
    const Status status = OneGeneration(*factory, std::to_string(round), specs, rank);
    REQUIRE(status.ok(), "seed {} round {}: {}", kSeed, round, status.ToString());
  }
  return 0;
}

// Case C27: 4 to 7 hand their bytes to 0 to 3, and are gone as soon as these confirm.
int Retiring(const ChildArgs& child) {
  auto factory = FactoryOf(child);
  const bool leaves = child.rank >= 4;
  const RankId peer = (child.rank + 4) % 8;
  auto transport = factory->MakeTransport("0", {0, 1, 2, 3, 4, 5, 6, 7}, {peer}, kTimeout).value();
  std::vector<std::byte> shard(3'000'001, static_cast<std::byte>(leaves ? child.rank : 0));
  std::vector<std::byte> receipt(1);
  auto wait = [&](const Result<transport::OpId>& op) {
    return op.ok() ? transport->Wait(*op, kTimeout) : op.status();
  };
  Status status =
      wait(leaves ? transport->Send(peer, 1, shard) : transport->Receive(peer, 1, shard));
  REQUIRE(status.ok(), "{}", status.ToString());
  status = wait(leaves ? transport->Receive(peer, 2, receipt) : transport->Send(peer, 2, receipt));
  REQUIRE(status.ok(), "{}", status.ToString());
  if (leaves) _exit(0);
  const auto of_peer = std::count(shard.begin(), shard.end(), static_cast<std::byte>(peer));
  REQUIRE(of_peer == static_cast<int64_t>(shard.size()), "{} bytes are of rank {}", of_peer, peer);
  return 0;
}

class C10dGroups : public testing::Test {
 protected:
  testing::AssertionResult Run(const std::string& body, int ranks) {
    const StoreAddress& address = server_->address();
    return RunProcesses(
        {.body = body, .ranks = ranks, .values = {address.host, std::to_string(address.port)}});
  }

  std::unique_ptr<StoreServer> server_ = StoreServer::Start({"127.0.0.1", 0}).value();
};

TEST_F(C10dGroups, ThirtyGenerationsLeaveNoDescriptorThreadOrKeyBehind) {
  const int64_t keys = *server_->KeyCount();
  EXPECT_TRUE(Run("Generations", 4));
  EXPECT_EQ(*server_->KeyCount(), keys);
}

TEST_F(C10dGroups, GenerationsOnOneStoreDoNotMeet) {
  const int64_t keys = *server_->KeyCount();
  EXPECT_TRUE(Run("Regrouping", 4));
  EXPECT_EQ(*server_->KeyCount(), keys);
}

TEST_F(C10dGroups, MembersAloneMakeOverlappingGroups) { EXPECT_TRUE(Run("MembersOnly", 6)); }

TEST_F(C10dGroups, ARetiringRankMayExitOnceItsPeerConfirmed) { EXPECT_TRUE(Run("Retiring", 8)); }

// Runs `body` as each of `ranks` on a thread of its own; returns what they return, in the order of
// `ranks`.
std::vector<Status> OnThreads(const std::vector<RankId>& ranks,
                              const std::function<Status(GlooGroupFactory&, RankId)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Status> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      auto factory = GlooGroupFactory::Make(ranks[i], store, kLoopback).value();
      results[i] = body(*factory, ranks[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(C10dGroup, AMissingMemberIsNamedWithItsGroup) {
  const GroupSpec spec = Spec("dp", 3, {5, 0, 2});
  std::barrier both_failed(2);
  const auto results = OnThreads({0, 2}, [&](GlooGroupFactory& factory, RankId) {
    const Status status = factory.MakeGroup("7", spec, milliseconds(200)).status();
    both_failed.arrive_and_wait();
    return status;
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(), HasSubstr("group dp.3 of epoch 7"));
    EXPECT_THAT(status.message(), HasSubstr("ranks 5 did not come"));
    EXPECT_THAT(status.message(), HasSubstr("members are 5,0,2"));
  }
}

TEST(C10dGroup, MembersThatDisagreeAboutTheListAreTold) {
  std::barrier both_failed(2);
  const auto results = OnThreads({0, 1}, [&](GlooGroupFactory& factory, RankId rank) {
    const auto order = rank == 0 ? std::vector<RankId>{0, 1} : std::vector<RankId>{1, 0};
    const Status status = factory.MakeGroup("0", Spec("tp", 0, order), kTimeout).status();
    both_failed.arrive_and_wait();
    return status;
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("0,1"));
    EXPECT_THAT(status.message(), HasSubstr("1,0"));
  }
}

TEST(C10dGroup, AnOutsiderIsRefused) {
  const auto results = OnThreads({4}, [&](GlooGroupFactory& factory, RankId) {
    return factory.MakeGroup("0", Spec("tp", 0, {0, 1}), kTimeout).status();
  });
  EXPECT_EQ(results[0].code(), StatusCode::kInvalidArgument);
}

// Case C26: the position in the list, not the rank's number, is the group rank.
TEST(C10dGroup, GroupRanksFollowTheList) {
  for (const std::vector<RankId>& ranks : {std::vector<RankId>{3, 1}, {2, 0}, {7, 3, 5}}) {
    const auto results = OnThreads(ranks, [&](GlooGroupFactory& factory, RankId rank) -> Status {
      DT_ASSIGN_OR_RETURN(auto group, factory.MakeGroup("0", Spec("tp", 0, ranks), kTimeout));
      const auto size = static_cast<int64_t>(ranks.size());
      at::Tensor all = at::empty({size}, at::kInt);
      at::Tensor mine = at::full({1}, rank, at::kInt);
      DT_RETURN_IF_ERROR(
          Fence("allgather", [&] { BackendOf(*group)->_allgather_base(all, mine)->wait(); }));
      for (int64_t i = 0; i < size; ++i) {
        if (all[i].item<int>() != ranks[static_cast<size_t>(i)]) return DataLoss("position {}", i);
      }
      return {};
    });
    for (const Status& status : results) EXPECT_EQ(status.ToString(), "ok");
  }
}

TEST(C10dGroup, AGroupOfOneWorks) {
  const auto results = OnThreads({6}, [&](GlooGroupFactory& factory, RankId rank) -> Status {
    DT_ASSIGN_OR_RETURN(auto group, factory.MakeGroup("0", Spec("world", 0, {6}), kTimeout));
    DT_RETURN_IF_ERROR(CheckSum(*group, rank));
    DT_ASSIGN_OR_RETURN(auto transport, factory.MakeTransport("0", {6}, {}, kTimeout));
    group->Abort();
    return {};
  });
  EXPECT_EQ(results[0].ToString(), "ok");
}

TEST(C10dGroup, AbortEndsAPendingCollectiveOnAllMembers) {
  const auto results = OnThreads({0, 1, 2}, [&](GlooGroupFactory& factory, RankId rank) -> Status {
    DT_ASSIGN_OR_RETURN(auto group, factory.MakeGroup("0", Spec("dp", 0, {0, 1, 2}), kTimeout));
    if (rank == 2) {  // never joins the allreduce
      group->Abort();
      return {};
    }
    return CheckSum(*group, rank);
  });
  EXPECT_FALSE(results[0].ok());
  EXPECT_FALSE(results[1].ok());
}

TEST(C10dGroup, AbortFromAnotherThreadEndsOnesOwnWait) {
  const auto results = OnThreads({0, 1}, [&](GlooGroupFactory& factory, RankId rank) -> Status {
    DT_ASSIGN_OR_RETURN(auto group, factory.MakeGroup("0", Spec("dp", 0, {0, 1}), kTimeout));
    if (rank == 1) {
      // Silent, but there until the other one has given up and closed the connection.
      std::vector<at::Tensor> never = {at::empty({1}, at::kLong)};
      return Fence("silent", [&] { BackendOf(*group)->recv(never, 0, 5)->wait(kTimeout); });
    }
    std::thread aborter([&] { group->Abort(); });
    const Status status = CheckSum(*group, rank);
    aborter.join();
    return status;
  });
  EXPECT_FALSE(results[0].ok());
  EXPECT_FALSE(results[1].ok());
}

}  // namespace
}  // namespace dynatrain::bridge

int main(int argc, char** argv) {
  using namespace dynatrain::bridge;  // NOLINT: the bodies alone
  SilenceTorchLog();
  return HarnessMain(argc, argv,
                     {{"Generations", Generations},
                      {"Regrouping", Regrouping},
                      {"MembersOnly", MembersOnly},
                      {"Retiring", Retiring}});
}
