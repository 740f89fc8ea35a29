#include "dynatrain/bridge/numeric_names.h"

#include <dlfcn.h>
#include <netdb.h>

extern "C" __attribute__((visibility("default"))) int getnameinfo(
    const sockaddr* address, socklen_t address_bytes, char* host, socklen_t host_bytes,
    char* service, socklen_t service_bytes, int flags) {
  using Function = decltype(&getnameinfo);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getnameinfo"));
  if (next == nullptr) return EAI_SYSTEM;
  return next(address, address_bytes, host, host_bytes, service, service_bytes,
              flags | NI_NUMERICHOST);
}

namespace dynatrain::bridge {

void UseNumericNames() {}

}  // namespace dynatrain::bridge
