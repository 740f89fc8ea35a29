#include "dynatrain/elastic/store.h"

#include <utility>

namespace dynatrain::elastic {
namespace {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store)
      : prefix_(std::move(prefix)), store_(std::move(store)) {}

  Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(Full(key), value);
  }
  Result<std::optional<std::string>> TryGet(const std::string& key) override {
    return store_->TryGet(Full(key));
  }
  Result<std::string> Wait(const std::string& key, Duration timeout) override {
    return store_->Wait(Full(key), timeout);
  }
  Result<std::string> SetIfAbsent(const std::string& key, const std::string& value) override {
    return store_->SetIfAbsent(Full(key), value);
  }
  Status Delete(const std::string& key) override { return store_->Delete(Full(key)); }
  Result<std::unique_ptr<Store>> Clone() override {
    DT_ASSIGN_OR_RETURN(std::unique_ptr<Store> clone, store_->Clone());
    return std::unique_ptr<Store>(std::make_unique<PrefixStore>(prefix_, std::move(clone)));
  }

 private:
  std::string Full(const std::string& key) const { return prefix_ + "/" + key; }

  const std::string prefix_;
  const std::shared_ptr<Store> store_;
};

}  // namespace

std::unique_ptr<Store> WithPrefix(std::string prefix, std::shared_ptr<Store> store) {
  return std::make_unique<PrefixStore>(std::move(prefix), std::move(store));
}

}  // namespace dynatrain::elastic
