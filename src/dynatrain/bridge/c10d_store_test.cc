#include "dynatrain/bridge/c10d_store.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dynatrain/bridge/fence.h"
#include "dynatrain/bridge/process_harness.h"
#include "dynatrain/elastic/store_conformance.h"

namespace dynatrain::bridge {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// A connection over which no key is set yet, to a server that lasts as long as the tests.
std::unique_ptr<elastic::Store> FreshTcpStore() {
  static auto* const server =
      new std::unique_ptr<StoreServer>(StoreServer::Start({"127.0.0.1", 0}).value());
  static int made = 0;
  return elastic::WithPrefix(fmt::format("fresh/{}", made++),
                             ConnectStore((*server)->address(), seconds(10)).value());
}

using elastic::StoreConformance;
using elastic::StoreMaker;

INSTANTIATE_TEST_SUITE_P(C10d, StoreConformance,
                         testing::Values(StoreMaker{"tcp", FreshTcpStore},
                                         StoreMaker{"hash",
                                                    [] {
                                                      return WrapStore(
                                                          c10::make_intrusive<c10d::HashStore>(),
                                                          seconds(10));
                                                    }}),
                         elastic::StoreMakerName);

class C10dStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = StoreServer::Start({"127.0.0.1", 0});
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
    store_ = Connect();
  }

  std::unique_ptr<elastic::Store> Connect() {
    return ConnectStore(server_->address(), seconds(10)).value();
  }

  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<elastic::Store> store_;
};

TEST_F(C10dStoreTest, AValueIsReadBackByteByByte) {
  const std::string value("a\0\xff=?", 5);
  ASSERT_TRUE(store_->Set("key", value).ok());
  EXPECT_EQ(**store_->TryGet("key"), value);
  EXPECT_EQ(*store_->Wait("key", seconds(1)), value);
  EXPECT_EQ(**Connect()->TryGet("key"), value);
}

TEST_F(C10dStoreTest, AnEmptyValueIsAValueAndAMissingKeyIsNot) {
  ASSERT_TRUE(store_->Set("empty", "").ok());
  EXPECT_EQ(**store_->TryGet("empty"), "");
  EXPECT_EQ(*store_->SetIfAbsent("empty", "late"), "");
  EXPECT_FALSE(store_->TryGet("missing")->has_value());
  EXPECT_EQ(*store_->SetIfAbsent("missing", ""), "");
  EXPECT_EQ(*store_->SetIfAbsent("missing", "late"), "");
}

TEST_F(C10dStoreTest, ReadingAMissingKeyLeavesNoKey) {
  const int64_t keys = *server_->KeyCount();
  EXPECT_FALSE(store_->TryGet("missing")->has_value());
  EXPECT_EQ(store_->Wait("missing", milliseconds(20)).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(*server_->KeyCount(), keys);
}

TEST_F(C10dStoreTest, ADeletedKeyIsAbsent) {
  ASSERT_TRUE(store_->Set("key", "1").ok());
  ASSERT_TRUE(store_->Delete("key").ok());
  EXPECT_FALSE(store_->TryGet("key")->has_value());
  EXPECT_TRUE(store_->Delete("key").ok());
}

TEST_F(C10dStoreTest, OfManyWritersOneWinsAndAllSeeIt) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::future<std::string>> seen;
    for (int writer = 0; writer < 4; ++writer) {
      seen.push_back(std::async(std::launch::async, [&, writer] {
        return *Connect()->SetIfAbsent("decision/" + std::to_string(round), std::to_string(writer));
      }));
    }
    const std::string winner = seen[0].get();
    for (size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i].get(), winner);
  }
}

TEST_F(C10dStoreTest, AWaiterWakesWhenTheKeyIsSet) {
  auto clone = store_->Clone();
  ASSERT_TRUE(clone.ok());
  auto value = std::async(std::launch::async, [&] { return (*clone)->Wait("key", seconds(30)); });
  ASSERT_TRUE(store_->Set("key", "there").ok());
  EXPECT_EQ(*value.get(), "there");
}

TEST_F(C10dStoreTest, AWaitEndsAtItsDeadlineAndTheStoreStaysUsable) {
  const Status status = store_->Wait("never", milliseconds(30)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("never"));
  EXPECT_EQ(store_->Wait("never", Duration::zero()).status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(store_->Set("key", "1").ok());
  EXPECT_EQ(*store_->Wait("key", Duration::zero()), "1");
}

TEST_F(C10dStoreTest, APortInUseIsToldWithItsNumber) {
  const Status status = StoreServer::Start(server_->address()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(server_->address().port)));
  EXPECT_THAT(status.message(), HasSubstr("in use"));
}

TEST(C10dStore, ABadAddressIsRefused) {
  EXPECT_EQ(StoreServer::Start({"not an address", 0}).status().code(),
            StatusCode::kInvalidArgument);
}

// Hosts a store and tells its port and process in the store at values[0], port values[1]; until
// killed.
int Host(const ChildArgs& child) {
  auto server = StoreServer::Start({"127.0.0.1", 0}).value();
  const StoreAddress meeting = {child.values[0], static_cast<uint16_t>(std::stoi(child.values[1]))};
  auto store = ConnectStore(meeting, seconds(20)).value();
  if (!store->Set("port", std::to_string(server->address().port)).ok()) return 1;
  if (!store->Set("pid", std::to_string(getpid())).ok()) return 1;
  pause();
  return 0;
}

class C10dStoreOfAnotherProcess : public C10dStoreTest {
 protected:
  void SetUp() override {
    C10dStoreTest::SetUp();
    host_ = std::async(std::launch::async, [this] {
      return RunProcesses(
          {.body = "Host",
           .ranks = 1,
           .values = {server_->address().host, std::to_string(server_->address().port)},
           .may_die = {0}});
    });
    address_ = {"127.0.0.1", static_cast<uint16_t>(std::stoi(*store_->Wait("port", seconds(30))))};
    pid_ = std::stoi(*store_->Wait("pid", seconds(30)));
  }

  void KillHost() {
    kill(pid_, SIGKILL);
    EXPECT_TRUE(host_.get());
  }

  std::future<testing::AssertionResult> host_;
  StoreAddress address_;
  pid_t pid_ = 0;
};

TEST_F(C10dStoreOfAnotherProcess, ALostServerIsUnavailableForGood) {
  auto store = ConnectStore(address_, seconds(10)).value();
  ASSERT_TRUE(store->Set("key", "1").ok());
  KillHost();
  const Status first = store->Wait("other", seconds(10)).status();
  EXPECT_EQ(first.code(), StatusCode::kUnavailable) << first.ToString();
  EXPECT_EQ(store->Set("key", "2").code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->TryGet("key").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->SetIfAbsent("key", "2").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(ConnectStore(address_, milliseconds(50)).status().code(), StatusCode::kUnavailable);
}

TEST_F(C10dStoreOfAnotherProcess, AServerThatDoesNotAnswerIsUnavailableAfterTheTimeout) {
  auto store = ConnectStore(address_, seconds(10)).value();
  auto impatient = WrapStore(ConnectC10dStore(address_, seconds(10)).value(), milliseconds(100));
  ASSERT_TRUE(store->Set("key", "1").ok());
  kill(pid_, SIGSTOP);
  // The stop takes effect when it likes; until then there are answers.
  Status silent;
  while (silent.ok()) silent = impatient->TryGet("key").status();
  EXPECT_EQ(silent.code(), StatusCode::kUnavailable);
  EXPECT_THAT(silent.message(), HasSubstr("no answer"));
  kill(pid_, SIGCONT);
  EXPECT_EQ(impatient->TryGet("key").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(**store->TryGet("key"), "1");
  KillHost();
}

}  // namespace
}  // namespace dynatrain::bridge

int main(int argc, char** argv) {
  dynatrain::bridge::SilenceTorchLog();
  return dynatrain::bridge::HarnessMain(argc, argv, {{"Host", dynatrain::bridge::Host}});
}
