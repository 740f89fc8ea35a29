#include "dynatrain/apps/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

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
