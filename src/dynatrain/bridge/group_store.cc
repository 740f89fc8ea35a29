#include "dynatrain/bridge/group_store.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <c10/util/Exception.h>

namespace dynatrain::bridge {
namespace {

// How long a wait goes on before it looks whether this rank is leaving.
constexpr std::chrono::milliseconds kStretch{200};

}  // namespace

GroupStore::GroupStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store,
                       std::chrono::milliseconds timeout,
                       std::shared_ptr<const std::atomic<bool>> leaving)
    : c10d::Store(timeout),
      prefix_(std::move(prefix)),
      store_(std::move(store)),
      leaving_(std::move(leaving)) {}

void GroupStore::DeleteWritten() {
  for (const std::string& key : written_) store_->deleteKey(key);
  written_.clear();
}

c10::intrusive_ptr<c10d::Store> GroupStore::clone() {
  return c10::make_intrusive<GroupStore>(prefix_, store_->clone(), timeout_, leaving_);
}

void GroupStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  written_.insert(Full(key));
  store_->set(Full(key), value);
}

std::vector<uint8_t> GroupStore::compareSet(const std::string& key,
                                            const std::vector<uint8_t>& expected,
                                            const std::vector<uint8_t>& desired) {
  written_.insert(Full(key));
  return store_->compareSet(Full(key), expected, desired);
}

std::vector<uint8_t> GroupStore::get(const std::string& key) {
  wait({key}, timeout_);
  return store_->get(Full(key));
}

int64_t GroupStore::add(const std::string& key, int64_t value) {
  written_.insert(Full(key));
  return store_->add(Full(key), value);
}

bool GroupStore::deleteKey(const std::string& key) {
  written_.erase(Full(key));
  return store_->deleteKey(Full(key));
}

bool GroupStore::check(const std::vector<std::string>& keys) { return store_->check(Full(keys)); }

int64_t GroupStore::getNumKeys() { return static_cast<int64_t>(written_.size()); }

void GroupStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void GroupStore::wait(const std::vector<std::string>& keys,
                      const std::chrono::milliseconds& timeout) {
  const std::vector<std::string> full = Full(keys);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    if (leaving_ && *leaving_) throw std::runtime_error("this rank leaves the job");
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      return store_->wait(full, std::clamp(left, std::chrono::milliseconds(1), kStretch));
    } catch (const c10::DistStoreError&) {  // a timeout; a lost server is another error
      if (left <= kStretch) throw;
    }
  }
}

std::vector<std::string> GroupStore::Full(const std::vector<std::string>& keys) const {
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const std::string& key : keys) full.push_back(Full(key));
  return full;
}

}  // namespace dynatrain::bridge
