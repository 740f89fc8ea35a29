#include "dynatrain/elastic/memory_store.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

namespace dynatrain::elastic {

struct MemoryStore::Data {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  bool connected = true;
};

namespace {

Status Lost() { return Unavailable("the in-memory store was disconnected"); }

}  // namespace

MemoryStore::MemoryStore() : data_(std::make_shared<Data>()) {}
MemoryStore::MemoryStore(std::shared_ptr<Data> data) : data_(std::move(data)) {}

Status MemoryStore::Set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(data_->mutex);
  if (!data_->connected) return Lost();
  data_->values[key] = value;
  data_->changed.notify_all();
  return Status::Ok();
}

Result<std::optional<std::string>> MemoryStore::TryGet(const std::string& key) {
  const std::lock_guard lock(data_->mutex);
  if (!data_->connected) return Lost();
  const auto it = data_->values.find(key);
  if (it == data_->values.end()) return std::optional<std::string>();
  return std::optional<std::string>(it->second);
}

Result<std::string> MemoryStore::Wait(const std::string& key, Duration timeout) {
  std::unique_lock lock(data_->mutex);
  data_->changed.wait_for(lock, timeout,
                          [&] { return !data_->connected || data_->values.contains(key); });
  if (!data_->connected) return Lost();
  const auto it = data_->values.find(key);
  if (it == data_->values.end()) {
    return DeadlineExceeded("store key {}: not set within {} s", key, ToSeconds(timeout));
  }
  return it->second;
}

Result<std::string> MemoryStore::SetIfAbsent(const std::string& key, const std::string& value) {
  const std::lock_guard lock(data_->mutex);
  if (!data_->connected) return Lost();
  const auto [it, inserted] = data_->values.try_emplace(key, value);
  if (inserted) data_->changed.notify_all();
  return it->second;
}

Status MemoryStore::Delete(const std::string& key) {
  const std::lock_guard lock(data_->mutex);
  if (!data_->connected) return Lost();
  data_->values.erase(key);
  return Status::Ok();
}

Result<std::unique_ptr<Store>> MemoryStore::Clone() {
  const std::lock_guard lock(data_->mutex);
  if (!data_->connected) return Lost();
  return std::unique_ptr<Store>(new MemoryStore(data_));
}

std::vector<std::string> MemoryStore::Keys() const {
  const std::lock_guard lock(data_->mutex);
  std::vector<std::string> keys;
  for (const auto& [key, value] : data_->values) keys.push_back(key);
  return keys;
}

void MemoryStore::Disconnect() {
  const std::lock_guard lock(data_->mutex);
  data_->connected = false;
  data_->changed.notify_all();
}

}  // namespace dynatrain::elastic
