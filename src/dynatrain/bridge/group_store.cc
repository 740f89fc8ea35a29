#include "dynatrain/bridge/group_store.h"

#include <utility>

namespace dynatrain::bridge {

GroupStore::GroupStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store,
                       std::chrono::milliseconds timeout)
    : c10d::Store(timeout), prefix_(std::move(prefix)), store_(std::move(store)) {}

void GroupStore::DeleteWritten() {
  for (const std::string& key : written_) store_->deleteKey(key);
  written_.clear();
}

c10::intrusive_ptr<c10d::Store> GroupStore::clone() {
  return c10::make_intrusive<GroupStore>(prefix_, store_->clone(), timeout_);
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
  store_->wait({Full(key)}, timeout_);
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
  store_->wait(Full(keys), timeout);
}

std::vector<std::string> GroupStore::Full(const std::vector<std::string>& keys) const {
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const std::string& key : keys) full.push_back(Full(key));
  return full;
}

}  // namespace dynatrain::bridge
