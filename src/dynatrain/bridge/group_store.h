// The store that one group is built over. For this folder's use.
#ifndef DYNATRAIN_BRIDGE_GROUP_STORE_H_
#define DYNATRAIN_BRIDGE_GROUP_STORE_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dynatrain::bridge {

// `store` under "prefix/", with its own timeout, remembering which keys were written through it.
// Once `leaving` is set, waits throw soon, also those of Gloo while it connects. Not thread-safe
// beyond what `store` is; throws what it throws.
class GroupStore final : public c10d::Store {
 public:
  GroupStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store,
             std::chrono::milliseconds timeout,
             std::shared_ptr<const std::atomic<bool>> leaving = nullptr);

  // Deletes every key written through this object.
  void DeleteWritten();

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  std::string Full(const std::string& key) const { return prefix_ + "/" + key; }
  std::vector<std::string> Full(const std::vector<std::string>& keys) const;

  const std::string prefix_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<const std::atomic<bool>> leaving_;  // may be null
  std::set<std::string> written_;                           // full names
};

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_GROUP_STORE_H_
