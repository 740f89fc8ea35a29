// Stands in for a Gloo header that torch wheels do not ship; see ../../README.md.
#ifndef DYNATRAIN_BRIDGE_GLOO_STUB_STORE_H_
#define DYNATRAIN_BRIDGE_GLOO_STUB_STORE_H_

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

// The members that torch's GlooStore overrides, and nothing that could be instantiated from here.
class Store {
 public:
  Store();
  virtual ~Store();

  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace gloo::rendezvous

#endif  // DYNATRAIN_BRIDGE_GLOO_STUB_STORE_H_
