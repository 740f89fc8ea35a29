#include "dynatrain/trainer/data.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "dynatrain/base/hash.h"

namespace dynatrain::trainer {
namespace {

constexpr int64_t kScanBytes = int64_t{1} << 20;

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
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NotFound("data file {}: {}", path, std::strerror(errno));
  const std::shared_ptr<TextData> data(new TextData(path, fd, seq));
  DT_RETURN_IF_ERROR(data->ReadSize());
  if (data->num_samples() < global_batch) {
    return InvalidArgument(
        "data file {} has {} bytes; a global batch of {} samples of {} bytes needs at least {}",
        path, data->size_, global_batch, seq, global_batch * seq + 1);
  }
  if (vocab < 256) DT_RETURN_IF_ERROR(data->CheckVocabulary(vocab));
  return std::shared_ptr<const TextData>(data);
}

TextData::~TextData() { ::close(fd_); }

Status TextData::ReadSize() {
  struct stat info{};
  if (::fstat(fd_, &info) != 0) {
    return Unavailable("data file {}: {}", path_, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument("data file {} is no regular file; any text file would do", path_);
  }
  size_ = info.st_size;
  num_samples_ = size_ > 0 ? (size_ - 1) / seq_ : 0;
  return {};
}

Status TextData::CheckVocabulary(int64_t vocab) const {
  std::vector<unsigned char> chunk(static_cast<size_t>(std::min(size_, kScanBytes)));
  for (int64_t at = 0; at < size_; at += kScanBytes) {
    const int64_t count = std::min(kScanBytes, size_ - at);
    DT_RETURN_IF_ERROR(ReadAt(at, chunk.data(), count));
    for (int64_t i = 0; i < count; ++i) {
      const unsigned char byte = chunk[static_cast<size_t>(i)];
      if (byte < vocab) continue;
      return InvalidArgument(
          "data file {}: byte {} at offset {} is outside the model's vocabulary of {}; 256 fits "
          "any file",
          path_, byte, at + i, vocab);
    }
  }
  return {};
}

Status TextData::ReadAt(int64_t offset, unsigned char* bytes, int64_t count) const {
  for (int64_t done = 0; done < count;) {
    const ssize_t got = ::pread(fd_, bytes + done, static_cast<size_t>(count - done),
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unavailable("data file {}: {}", path_, std::strerror(errno));
    if (got == 0) {
      return DataLoss(
          "data file {} was cut short while training runs: it had {} bytes and now ends before "
          "byte {}; restore it and go on from a checkpoint",
          path_, size_, offset + count);
    }
    done += got;
  }
  return {};
}

Result<std::vector<unsigned char>> TextData::Sample(int64_t sample) const {
  DT_CHECK(sample >= 0 && sample < num_samples_);
  std::vector<unsigned char> bytes(static_cast<size_t>(seq_ + 1));
  DT_RETURN_IF_ERROR(ReadAt(sample * seq_, bytes.data(), seq_ + 1));
  return bytes;
}

int64_t TextData::Order(int64_t position, uint64_t seed) const {
  const int64_t epoch = position / num_samples_;
  const uint64_t key = Hasher().Add("data order").Add(seed).Add(epoch).hash();
  return Permute(position % num_samples_, num_samples_, key);
}

}  // namespace dynatrain::trainer
