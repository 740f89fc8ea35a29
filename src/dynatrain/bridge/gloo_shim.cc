#include "dynatrain/bridge/gloo_shim.h"

// The wheel's library has Gloo; this define opens the header that declares the group.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace dynatrain::bridge {

using c10d::ProcessGroupGloo;

GlooDevice MakeGlooDeviceForInterface(const std::string& interface) {
  return ProcessGroupGloo::createDeviceForInterface(interface);
}

GlooDevice MakeGlooDeviceForAddress(const std::string& address) {
  return ProcessGroupGloo::createDeviceForHostname(address);
}

c10::intrusive_ptr<c10d::Backend> MakeGlooBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  std::chrono::milliseconds timeout,
                                                  const GlooDevice& device) {
  auto options = ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(device);
  options->threads = 1;
  return c10::make_intrusive<ProcessGroupGloo>(store, rank, size, std::move(options));
}

}  // namespace dynatrain::bridge
