// What every Store must do, as tests. A test binary names its store once:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance, testing::Values(StoreMaker{"memory", [] {
//     return std::make_unique<MemoryStore>(); }}), StoreMakerName);
//
// and links the target dynatrain_store_conformance.
#ifndef DYNATRAIN_ELASTIC_STORE_CONFORMANCE_H_
#define DYNATRAIN_ELASTIC_STORE_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "dynatrain/elastic/store.h"

namespace dynatrain::elastic {

struct StoreMaker {
  std::string name;
  std::function<std::unique_ptr<Store>()>
      make;  // a store that holds no key, or null: the test fails
};
std::string StoreMakerName(const testing::TestParamInfo<StoreMaker>& info);

class StoreConformance : public testing::TestWithParam<StoreMaker> {
 protected:
  void SetUp() override;
  std::unique_ptr<Store> MustClone();

  std::shared_ptr<Store> store_;
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_STORE_CONFORMANCE_H_
