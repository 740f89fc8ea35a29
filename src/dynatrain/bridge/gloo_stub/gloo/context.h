// Stands in for a Gloo header that torch wheels do not ship; see ../README.md.
#ifndef DYNATRAIN_BRIDGE_GLOO_STUB_CONTEXT_H_
#define DYNATRAIN_BRIDGE_GLOO_STUB_CONTEXT_H_

#include <chrono>

namespace gloo {

namespace transport {

class Device;
class UnboundBuffer;

}  // namespace transport

class Context {
 public:
  Context() = delete;

  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo

#endif  // DYNATRAIN_BRIDGE_GLOO_STUB_CONTEXT_H_
