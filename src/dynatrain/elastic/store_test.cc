#include "dynatrain/elastic/store.h"

#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "dynatrain/elastic/memory_store.h"
#include "dynatrain/elastic/store_conformance.h"

namespace dynatrain::elastic {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Memory, StoreConformance,
    testing::Values(StoreMaker{"memory", [] { return std::make_unique<MemoryStore>(); }},
                    StoreMaker{"prefixed",
                               [] { return WithPrefix("job", std::make_shared<MemoryStore>()); }}),
    StoreMakerName);

TEST(MemoryStore, ADisconnectEndsEveryOperationOnEveryClone) {
  MemoryStore store;
  auto clone = *store.Clone();
  std::thread waiter([&] {
    EXPECT_EQ(clone->Wait("never", std::chrono::seconds(30)).status().code(),
              StatusCode::kUnavailable);
  });
  store.Disconnect();
  waiter.join();
  EXPECT_EQ(store.Set("a", "1").code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.TryGet("a").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.SetIfAbsent("a", "1").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.Delete("a").code(), StatusCode::kUnavailable);
  EXPECT_FALSE(store.Clone().ok());
}

}  // namespace
}  // namespace dynatrain::elastic
