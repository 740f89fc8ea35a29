// Native c10d Gloo groups, without Gloo's headers (gloo_stub/README.md tells how).
//
// Everything here may throw what c10d and Gloo throw (all derived from std::exception); callers
// stand behind bridge/fence.h.
#ifndef DYNATRAIN_BRIDGE_GLOO_SHIM_H_
#define DYNATRAIN_BRIDGE_GLOO_SHIM_H_

#include <chrono>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace gloo::transport {
class Device;
}  // namespace gloo::transport

namespace dynatrain::bridge {

// A network device: one listening socket and one I/O thread, shared by every group made over it.
// Connections are made eagerly, in the group's constructor. Copies share the device; thread-safe.
using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

// The device on network interface `interface` ("lo", "eth0").
GlooDevice MakeGlooDeviceForInterface(const std::string& interface);

// The device on the interface that owns `address`, an IP address or host name of this machine.
GlooDevice MakeGlooDeviceForAddress(const std::string& address);

// A Gloo group of `size` ranks, this process being group rank `rank`. Collective over the group: it
// returns when connections to all other ranks stand, or throws after `timeout`, which is also the
// default deadline of every operation on the group. `store` needs a prefix that no other group ever
// used. The group owns one worker thread. Its destructor joins it and waits for pending operations.
c10::intrusive_ptr<c10d::Backend> MakeGlooBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  std::chrono::milliseconds timeout,
                                                  const GlooDevice& device);

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_GLOO_SHIM_H_
