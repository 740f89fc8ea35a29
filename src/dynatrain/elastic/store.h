// Store: the small shared key-value service through which ranks, launcher and tools agree. It lives
// in the launcher, never in a rank.
#ifndef DYNATRAIN_ELASTIC_STORE_H_
#define DYNATRAIN_ELASTIC_STORE_H_

#include <memory>
#include <optional>
#include <string>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"

namespace dynatrain::elastic {

// SEAM. Values are bytes. One thread at a time per object; other threads use their own Clone().
// Operations are linearisable. Errors: kUnavailable if the store cannot be reached (final for this
// object).
class Store {
 public:
  virtual ~Store() = default;

  virtual Status Set(const std::string& key, const std::string& value) = 0;
  // The value, or none if the key is not set (does not wait).
  virtual Result<std::optional<std::string>> TryGet(const std::string& key) = 0;
  // The value once the key is set; kDeadlineExceeded after `timeout`.
  virtual Result<std::string> Wait(const std::string& key, Duration timeout) = 0;
  // First writer wins: sets `value` if the key is not set yet; returns what the key holds
  // afterwards.
  virtual Result<std::string> SetIfAbsent(const std::string& key, const std::string& value) = 0;
  virtual Status Delete(const std::string& key) = 0;
  // An own connection to the same data, for another thread.
  virtual Result<std::unique_ptr<Store>> Clone() = 0;
};

// `store` with "prefix/" before every key; keeps a reference to it.
std::unique_ptr<Store> WithPrefix(std::string prefix, std::shared_ptr<Store> store);

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_STORE_H_
