#include <set>

#include <gtest/gtest.h>

#include "dynatrain/base/hash.h"
#include "dynatrain/base/json.h"
#include "dynatrain/base/random.h"
#include "dynatrain/base/status.h"
#include "dynatrain/base/text.h"

namespace dynatrain {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("{} is odd: give an even number", n);
  return n / 2;
}

Result<int> Quarter(int n) {
  DT_ASSIGN_OR_RETURN(const int half, Half(n));
  return Half(half);
}

TEST(Status, CarriesTheFirstErrorUnchanged) {
  EXPECT_EQ(*Quarter(12), 3);
  const Result<int> failed = Quarter(6);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().ToString(), "invalid argument: 3 is odd: give an even number");
}

TEST(Status, ContextGoesInFrontAndOkStaysOk) {
  EXPECT_TRUE(Status::Ok().Within("loading").ok());
  EXPECT_EQ(DataLoss("short by {} bytes", 3).Within("rank 2").message(),
            "rank 2: short by 3 bytes");
}

TEST(StatusDeathTest, ReadingTheValueOfAnErrorAborts) {
  EXPECT_DEATH((void)Half(3).value(), "3 is odd");
}

TEST(Hasher, OrderAndLengthsCount) {
  EXPECT_NE(Hasher().Add(1).Add(2).hash(), Hasher().Add(2).Add(1).hash());
  EXPECT_NE(Hasher().Add("ab").Add("c").hash(), Hasher().Add("a").Add("bc").hash());
  EXPECT_NE(Hasher().hash(), Hasher().Add(0).hash());
}

TEST(Random, RepeatsBySeedAndCoversItsRange) {
  Random a(7), b(7);
  std::set<int64_t> seen;
  for (int i = 0; i < 200; ++i) {
    const int64_t x = a.Between(-2, 2);
    EXPECT_EQ(x, b.Between(-2, 2));
    seen.insert(x);
  }
  EXPECT_EQ(seen, (std::set<int64_t>{-2, -1, 0, 1, 2}));
}

TEST(ParseJson, ReadsWhatIsJson) {
  EXPECT_EQ((*ParseJson(R"({"a": [1, {"b": 2}], "b": {"a": 3}})"))["a"][1]["b"], 2);
  EXPECT_EQ(*ParseJson("7"), 7);
}

// The same key in two objects is fine; twice in one is not, however deep, whatever is between.
TEST(DumpJson, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(DumpJson({{"a", 1}, {"path", "caf\xc3\xa9"}}), "{\"a\":1,\"path\":\"caf\xc3\xa9\"}");
  EXPECT_EQ(DumpJson({{"a", 1}, {"path", "caf\xe9"}}), "{\"a\":1,\"path\":\"caf\xef\xbf\xbd\"}");
  EXPECT_EQ(DumpJson({1, 2}, 1), "[\n 1,\n 2\n]");
  EXPECT_TRUE(IsUtf8("caf\xc3\xa9"));
  EXPECT_FALSE(IsUtf8("caf\xe9"));
}

TEST(ParseJson, RefusesAKeyThatIsGivenTwiceByName) {
  for (const char* text : {R"({"n": 1, "n": 1})", R"([{"a": {"n": 1, "m": {"n": 2}, "n": 3}}])",
                           R"({"n": [{"n": 1}], "\u006e": 2})"}) {
    const auto json = ParseJson(text);
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.status().message(), "key 'n' is given twice; right is once") << text;
  }
  EXPECT_TRUE(ParseJson(R"([{"n": 1}, {"n": 1}])").ok());
}

TEST(ParseJson, TellsWhereATextIsNotJson) {
  const std::string message = ParseJson("{\"a\": 1,\n \"b\": }").status().message();
  EXPECT_TRUE(message.starts_with("not JSON: parse error at line 2, column 7: ")) << message;
  EXPECT_TRUE(ParseJson("1e999").status().message().starts_with("not JSON: number overflow"));
  EXPECT_FALSE(ParseJson("").ok());
  EXPECT_LT(ParseJson("\"" + std::string(100000, 'x')).status().message().size(), 400U);
}

TEST(ShortenedTest, KeepsBothEndsOfALongText) {
  EXPECT_EQ(Shortened("tp=2,dp=2"), "tp=2,dp=2");
  EXPECT_EQ(Shortened("0123456789", 10), "0123456789");
  EXPECT_EQ(Shortened("0123456789A", 10), "0123...89A");
  EXPECT_EQ(Shortened(std::string(5000, 'x')).size(), 100u);
}

}  // namespace
}  // namespace dynatrain
