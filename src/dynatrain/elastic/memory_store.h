// MemoryStore: a Store inside one process, for ranks that are threads.
#ifndef DYNATRAIN_ELASTIC_MEMORY_STORE_H_
#define DYNATRAIN_ELASTIC_MEMORY_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "dynatrain/elastic/store.h"

namespace dynatrain::elastic {

// Clones share the data and outlive the object they came from. Waits in real time.
class MemoryStore final : public Store {
 public:
  MemoryStore();

  Status Set(const std::string& key, const std::string& value) override;
  Result<std::optional<std::string>> TryGet(const std::string& key) override;
  Result<std::string> Wait(const std::string& key, Duration timeout) override;
  Result<std::string> SetIfAbsent(const std::string& key, const std::string& value) override;
  Status Delete(const std::string& key) override;
  Result<std::unique_ptr<Store>> Clone() override;

  std::vector<std::string> Keys() const;  // ascending; any thread

  // From now on every operation on every clone fails with kUnavailable, as if the launcher had
  // died. Any thread.
  void Disconnect();

 private:
  struct Data;
  explicit MemoryStore(std::shared_ptr<Data> data);

  std::shared_ptr<Data> data_;
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_MEMORY_STORE_H_
