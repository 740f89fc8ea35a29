#include "dynatrain/apps/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <nlohmann/json.hpp>

namespace dynatrain::apps {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ControlTest : public testing::Test {
 protected:
  ControlTest() {
    ControlHandlers handlers{
        .request_switch = [this](const std::string&) -> Result<int64_t> { return ++requests_; },
        .switch_state = [](int64_t id) -> Result<json> { return json{{"state", id}}; },
        .status = [] { return json{{"step", 7}}; }};
    server_ = *ControlServer::Start({"127.0.0.1", 0}, std::move(handlers));
  }

  httplib::Result Post(const httplib::Headers& headers) {
    return Browser().Post("/switch", headers, R"({"spec": "dp=2"})", "text/plain");
  }
  httplib::Client Browser() const {
    return httplib::Client(server_->address().host, server_->address().port);
  }
  std::string port() const { return std::to_string(server_->address().port); }

  std::atomic<int64_t> requests_ = 0;
  std::unique_ptr<ControlServer> server_;
};

TEST_F(ControlTest, PagesOfOtherSitesControlNothing) {
  for (const std::string& origin :
       {std::string("http://evil.example"), std::string("null"), std::string("http://127.0.0.1"),
        "http://127.0.0.1:" + port() + ".evil.example", "http://127.0.0.1:1" + port(),
        "http://evil.example:" + port(), "https://127.0.0.1:" + port()}) {
    const auto answer = Post({{"Origin", origin}});
    ASSERT_TRUE(answer) << origin;
    EXPECT_EQ(answer->status, 403) << origin;
    EXPECT_THAT(
        json::parse(answer->body)["error"].get<std::string>(),
        HasSubstr("right is a request without Origin, or one from http://127.0.0.1:" + port()));
  }
  EXPECT_EQ(requests_, 0);
  for (const char* path : {"/status", "/switch/3"})
    EXPECT_EQ(Browser().Get(path, {{"Origin", "http://evil.example"}})->status, 403) << path;
}

// A name whose owner lets it lead to this machine is a site of its own to a browser (DNS rebinding).
TEST_F(ControlTest, NamesThatLeadHereReadNothing) {
  for (const std::string& host :
       {"evil.example:" + port(), std::string("evil.example"), "localhost.evil.example:" + port(),
        "127.0.0.1.evil.example:" + port(), "[evil.example]:" + port(), "127.1:" + port(),
        std::string("[::1"), std::string(":"), std::string("[]")}) {
    for (const char* path : {"/status", "/switch/3"}) {
      const auto answer = Browser().Get(path, {{"Host", host}});
      ASSERT_TRUE(answer) << host;
      EXPECT_EQ(answer->status, 403) << host;
      EXPECT_THAT(
          json::parse(answer->body)["error"].get<std::string>(),
          HasSubstr("right is a request for 127.0.0.1:" + port() + ", localhost:" + port()));
    }
    const auto origin = "http://" + host;
    EXPECT_EQ(Post({{"Host", host}, {"Origin", origin}})->status, 403) << host;
  }
  EXPECT_EQ(requests_, 0);
}

TEST_F(ControlTest, AddressesAndTheMachinesOwnNameDo) {
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  for (const std::string& host :
       {std::string("127.0.0.1"), "127.0.0.1:" + port(), std::string("LocalHost:1"),
        std::string("[::1]:7070"), std::string("::1"), std::string("192.0.2.7:80"),
        std::string(name.data()), std::string(name.data()) + ":" + port()}) {
    const auto answer = Browser().Get("/status", {{"Host", host}});
    ASSERT_TRUE(answer) << host;
    EXPECT_EQ(answer->status, 200) << host << ": " << answer->body;
  }
}

TEST_F(ControlTest, ProgramsAndPagesOfThePortItselfDo) {
  EXPECT_EQ((*ControlPost(server_->address(), "/switch", {{"spec", "dp=2"}}))["id"], 1);
  for (const char* host : {"127.0.0.1", "localhost", "[::1]"}) {
    const auto answer = Post({{"Origin", fmt::format("http://{}:{}", host, port())}});
    ASSERT_TRUE(answer) << host;
    EXPECT_EQ(answer->status, 200) << host << ": " << answer->body;
  }
  EXPECT_EQ(requests_, 4);
  EXPECT_EQ((*ControlGet(server_->address(), "/status"))["step"], 7);
}

}  // namespace
}  // namespace dynatrain::apps
