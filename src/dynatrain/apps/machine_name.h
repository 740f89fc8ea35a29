// The name that this machine has.
#ifndef DYNATRAIN_APPS_MACHINE_NAME_H_
#define DYNATRAIN_APPS_MACHINE_NAME_H_

#include <unistd.h>

#include <array>
#include <string>

namespace dynatrain::apps {

// Empty if it has none.
inline std::string MachineName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_MACHINE_NAME_H_
