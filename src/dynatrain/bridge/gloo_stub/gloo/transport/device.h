// Stands in for a Gloo header that torch wheels do not ship; see ../../README.md.
#ifndef DYNATRAIN_BRIDGE_GLOO_STUB_DEVICE_H_
#define DYNATRAIN_BRIDGE_GLOO_STUB_DEVICE_H_

namespace gloo::transport {

class Device;

}  // namespace gloo::transport

#endif  // DYNATRAIN_BRIDGE_GLOO_STUB_DEVICE_H_
