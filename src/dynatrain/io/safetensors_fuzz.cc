// Any bytes as a safetensors file: refused, or every tensor lies inside it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "dynatrain/base/check.h"
#include "dynatrain/io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dynatrain;
  const int fd = memfd_create("fuzz", 0);
  DT_CHECK(fd >= 0);
  DT_CHECK(write(fd, data, size) == static_cast<ssize_t>(size));
  {
    const auto file = io::SafetensorsFile::Open("/proc/self/fd/" + std::to_string(fd));
    volatile uint64_t sum = 0;  // so that all of it is read
    if (file.ok()) {
      for (const io::TensorView& tensor : file->tensors()) {
        for (const std::byte byte : tensor.data) sum = sum + static_cast<uint64_t>(byte);
        DT_CHECK(file->Find(tensor.name).ok());
      }
    }
    DT_CHECK(file.ok() || !file.status().message().empty());
  }
  close(fd);
  return 0;
}
