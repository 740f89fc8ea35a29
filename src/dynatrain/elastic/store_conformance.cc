#include "dynatrain/elastic/store_conformance.h"

#include <atomic>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace dynatrain::elastic {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string StoreMakerName(const testing::TestParamInfo<StoreMaker>& info) {
  return info.param.name;
}

void StoreConformance::SetUp() {
  store_ = GetParam().make();
  ASSERT_NE(store_, nullptr) << "no store of kind " << GetParam().name;
}

std::unique_ptr<Store> StoreConformance::MustClone() {
  auto clone = store_->Clone();
  EXPECT_TRUE(clone.ok()) << clone.status().ToString();
  return clone.ok() ? *std::move(clone) : nullptr;
}

namespace {

TEST_P(StoreConformance, TryGetTellsWhatIsSetAndNeverWaits) {
  const auto none = store_->TryGet("a");
  ASSERT_TRUE(none.ok()) << none.status().ToString();
  EXPECT_FALSE(none->has_value());
  ASSERT_TRUE(store_->Set("a", "1").ok());
  const auto one = store_->TryGet("a");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(*one, "1");
  ASSERT_TRUE(store_->Set("a", "22").ok());
  EXPECT_EQ(**store_->TryGet("a"), "22");
}

TEST_P(StoreConformance, ValuesAreBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  ASSERT_TRUE(store_->Set("bytes", bytes).ok());
  EXPECT_EQ(**store_->TryGet("bytes"), bytes);
  ASSERT_TRUE(store_->Set("empty", "").ok());
  const auto empty = store_->TryGet("empty");
  ASSERT_TRUE(empty.ok());
  ASSERT_TRUE(empty->has_value());
  EXPECT_EQ(**empty, "");
  const std::string large(1 << 18, 'x');
  ASSERT_TRUE(store_->Set("large", large).ok());
  EXPECT_EQ(*store_->Wait("large", seconds(10)), large);
}

TEST_P(StoreConformance, FirstWriterWins) {
  EXPECT_EQ(*store_->SetIfAbsent("decision", "commit"), "commit");
  EXPECT_EQ(*store_->SetIfAbsent("decision", "abort"), "commit");
  EXPECT_EQ(**store_->TryGet("decision"), "commit");
  ASSERT_TRUE(store_->Set("set", "by Set").ok());
  EXPECT_EQ(*store_->SetIfAbsent("set", "late"), "by Set");
  ASSERT_TRUE(store_->SetIfAbsent("no value", "").ok());
  EXPECT_EQ(*store_->SetIfAbsent("no value", "late"), "") << "an empty value is a value";
}

TEST_P(StoreConformance, DeletedKeysAreFreeAgain) {
  ASSERT_TRUE(store_->Delete("never set").ok());
  ASSERT_TRUE(store_->Set("a", "1").ok());
  ASSERT_TRUE(store_->Delete("a").ok());
  EXPECT_FALSE(store_->TryGet("a")->has_value());
  EXPECT_EQ(store_->Wait("a", milliseconds(20)).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(*store_->SetIfAbsent("a", "2"), "2");
}

TEST_P(StoreConformance, WaitEndsWhenTheKeyIsSet) {
  const auto writer_store = MustClone();
  ASSERT_NE(writer_store, nullptr);
  std::thread writer([&] {
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(writer_store->Set("late", "value").ok());
  });
  const auto value = store_->Wait("late", seconds(30));
  writer.join();
  ASSERT_TRUE(value.ok()) << value.status().ToString();
  EXPECT_EQ(*value, "value");
}

TEST_P(StoreConformance, WaitHasADeadlineThatHarmsNothing) {
  for (int i = 0; i < 3; ++i) {
    const auto value = store_->Wait("nobody", milliseconds(30));
    ASSERT_FALSE(value.ok());
    EXPECT_EQ(value.status().code(), StatusCode::kDeadlineExceeded) << value.status().ToString();
    EXPECT_NE(value.status().message().find("nobody"), std::string::npos)
        << "names no key: " << value.status().message();
    ASSERT_TRUE(store_->Set("alive", "yes").ok()) << "the store is unusable after a deadline";
    EXPECT_EQ(*store_->Wait("alive", seconds(10)), "yes");
  }
}

TEST_P(StoreConformance, ClonesSeeTheSameDataAndOutliveTheirOrigin) {
  auto clone = MustClone();
  ASSERT_NE(clone, nullptr);
  ASSERT_TRUE(store_->Set("a", "1").ok());
  EXPECT_EQ(**clone->TryGet("a"), "1");
  ASSERT_TRUE(clone->Set("b", "2").ok());
  EXPECT_EQ(**store_->TryGet("b"), "2");
  auto second = clone->Clone();
  ASSERT_TRUE(second.ok());
  clone.reset();
  EXPECT_EQ(**(*second)->TryGet("b"), "2");
}

TEST_P(StoreConformance, AWaitOnOneCloneDoesNotHoldUpAnother) {
  const auto waiting = MustClone();
  ASSERT_NE(waiting, nullptr);
  std::thread waiter([&] { EXPECT_EQ(*waiting->Wait("end", seconds(30)), "now"); });
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(store_->Set("k", std::to_string(i)).ok());
  EXPECT_TRUE(store_->Set("end", "now").ok());
  waiter.join();
}

TEST_P(StoreConformance, OneOfManyWritersWinsAndAllSeeIt) {
  constexpr int kWriters = 6;
  constexpr int kRounds = 20;
  std::vector<std::unique_ptr<Store>> stores;
  for (int w = 0; w < kWriters; ++w) {
    stores.push_back(MustClone());
    ASSERT_NE(stores.back(), nullptr);
  }
  std::vector<std::vector<std::string>> seen(kWriters);
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      const auto index = static_cast<size_t>(w);
      for (int round = 0; round < kRounds; ++round) {
        const auto value = stores[index]->SetIfAbsent("race/" + std::to_string(round),
                                                      "writer " + std::to_string(w));
        seen[index].push_back(value.ok() ? *value : value.status().ToString());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int round = 0; round < kRounds; ++round) {
    std::set<std::string> winners;
    for (const auto& values : seen) winners.insert(values[static_cast<size_t>(round)]);
    EXPECT_EQ(winners.size(), 1u) << "round " << round;
    EXPECT_TRUE(winners.begin()->starts_with("writer ")) << *winners.begin();
  }
}

TEST_P(StoreConformance, PrefixesKeepKeySpacesApart) {
  const auto one = WithPrefix("epoch1", store_);
  const auto two = WithPrefix("epoch2", store_);
  ASSERT_TRUE(one->Set("a", "1").ok());
  EXPECT_FALSE(two->TryGet("a")->has_value());
  EXPECT_EQ(*two->SetIfAbsent("a", "2"), "2");
  EXPECT_EQ(**store_->TryGet("epoch1/a"), "1");
  auto clone = one->Clone();
  ASSERT_TRUE(clone.ok());
  EXPECT_EQ(*(*clone)->Wait("a", seconds(10)), "1");
  ASSERT_TRUE(one->Delete("a").ok());
  EXPECT_FALSE((*clone)->TryGet("a")->has_value());
  EXPECT_EQ(**two->TryGet("a"), "2");
}

}  // namespace
}  // namespace dynatrain::elastic
