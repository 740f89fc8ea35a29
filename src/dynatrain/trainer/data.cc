#include "dynatrain/trainer/data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "dynatrain/base/hash.h"

namespace dynatrain::trainer {
namespace {

struct Mapping {
  const unsigned char* bytes = nullptr;
  int64_t size = 0;
};

Result<Mapping> MapFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NotFound("data file {}: {}", path, std::strerror(errno));
  struct stat info{};
  Result<Mapping> mapping = Mapping{};
  if (::fstat(fd, &info) != 0) {
    mapping = Unavailable("data file {}: {}", path, std::strerror(errno));
  } else if (!S_ISREG(info.st_mode)) {
    mapping = InvalidArgument("data file {} is no regular file; any text file would do", path);
  } else if (info.st_size > 0) {
    void* bytes = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
      mapping = Unavailable("data file {}: cannot map its {} bytes: {}", path, info.st_size,
                            std::strerror(errno));
    } else {
      mapping = Mapping{static_cast<const unsigned char*>(bytes), info.st_size};
    }
  }
  ::close(fd);
  return mapping;
}

}  // namespace

int64_t Permute(int64_t value, int64_t n, uint64_t key) {
  const int half_bits =
      std::max(1, (static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1))) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  auto x = static_cast<uint64_t>(value);
  do {
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = left ^ (Mix64(key ^ Mix64(right + (round << 60))) & mask);
      left = right;
      right = mixed;
    }
    x = left << half_bits | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

Result<std::shared_ptr<const TextData>> TextData::Open(const std::string& path, int64_t seq,
                                                       int64_t global_batch, int64_t vocab) {
  DT_ASSIGN_OR_RETURN(const Mapping mapping, MapFile(path));
  std::shared_ptr<const TextData> data(new TextData(mapping.bytes, mapping.size, seq));
  if (data->num_samples() < global_batch) {
    return InvalidArgument(
        "data file {} has {} bytes; a global batch of {} samples of {} bytes needs at least {}",
        path, mapping.size, global_batch, seq, global_batch * seq + 1);
  }
  if (vocab < 256) {
    const unsigned char* end = mapping.bytes + mapping.size;
    const unsigned char* bad =
        std::find_if(mapping.bytes, end, [vocab](unsigned char byte) { return byte >= vocab; });
    if (bad != end) {
      return InvalidArgument(
          "data file {}: byte {} at offset {} is outside the model's vocabulary of {}; 256 fits "
          "any file",
          path, *bad, bad - mapping.bytes, vocab);
    }
  }
  return data;
}

TextData::~TextData() {
  if (bytes_ != nullptr) ::munmap(const_cast<unsigned char*>(bytes_), static_cast<size_t>(size_));
}

std::span<const unsigned char> TextData::Sample(int64_t sample) const {
  DT_CHECK(sample >= 0 && sample < num_samples_);
  return {bytes_ + sample * seq_, static_cast<size_t>(seq_ + 1)};
}

int64_t TextData::Order(int64_t position, uint64_t seed) const {
  const int64_t epoch = position / num_samples_;
  const uint64_t key = Hasher().Add("data order").Add(seed).Add(epoch).hash();
  return Permute(position % num_samples_, num_samples_, key);
}

}  // namespace dynatrain::trainer
