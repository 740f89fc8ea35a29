#include "dynatrain/trainer/data.h"

#include <fcntl.h>
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
  DT_ASSIGN_OR_RETURN(TokenFile file, FindTokens(path));
  const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NotFound("data file {}: {}", file.path, std::strerror(errno));
  const std::shared_ptr<const TextData> data(new TextData(std::move(file), fd, seq, vocab));
  if (data->num_samples() < global_batch) {
    const char* unit = data->file_.kind == "text" ? "bytes" : "tokens";
    return InvalidArgument(
        "data file {} has {} {}; a global batch of {} samples of {} {} needs at least {}", path,
        data->file_.tokens, unit, global_batch, seq, unit, global_batch * seq + 1);
  }
  DT_RETURN_IF_ERROR(data->CheckVocabulary());
  return data;
}

TextData::~TextData() { ::close(fd_); }

Status TextData::CheckVocabulary() const {
  if (file_.token_bytes == 1 && vocab_ >= 256) return {};
  const int64_t looked_at = file_.kind == "text" ? file_.tokens : kScanBytes / file_.token_bytes;
  const int64_t end = std::min(file_.tokens, looked_at);
  for (int64_t at = 0; at < end; at += kScanBytes) {
    DT_RETURN_IF_ERROR(Tokens(at, std::min(kScanBytes, end - at)).status());
  }
  return {};
}

Result<std::vector<int64_t>> TextData::Tokens(int64_t begin, int64_t count) const {
  const auto width = static_cast<size_t>(file_.token_bytes);
  std::vector<unsigned char> bytes(static_cast<size_t>(count) * width);
  DT_RETURN_IF_ERROR(ReadAt(file_.offset + begin * file_.token_bytes, bytes.data(),
                            static_cast<int64_t>(bytes.size())));
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint32_t token = 0;
    std::memcpy(&token, bytes.data() + i * width, width);
    tokens[i] = token;
    if (token < static_cast<uint64_t>(vocab_)) continue;
    const int64_t at = begin + static_cast<int64_t>(i);
    if (file_.kind == "text") {
      return InvalidArgument(
          "data file {}: byte {} at offset {} is outside the model's vocabulary of {}; 256 fits "
          "any file",
          file_.path, token, at, vocab_);
    }
    return InvalidArgument(
        "data file {}: token {} at position {} is outside the model's vocabulary of {}; the "
        "model's "
        "vocab_size must be that of the tokenizer",
        file_.path, token, at, vocab_);
  }
  return tokens;
}

Status TextData::ReadAt(int64_t offset, unsigned char* bytes, int64_t count) const {
  for (int64_t done = 0; done < count;) {
    const ssize_t got = ::pread(fd_, bytes + done, static_cast<size_t>(count - done),
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unavailable("data file {}: {}", file_.path, std::strerror(errno));
    if (got == 0) {
      return DataLoss(
          "data file {} was cut short while training runs: it had {} bytes and now ends before "
          "byte {}; restore it and go on from a checkpoint",
          file_.path, file_.offset + file_.tokens * file_.token_bytes, offset + count);
    }
    done += got;
  }
  return {};
}

Result<std::vector<int64_t>> TextData::Sample(int64_t sample) const {
  DT_CHECK(sample >= 0 && sample < num_samples_);
  return Tokens(sample * seq_, seq_ + 1);
}

int64_t TextData::Order(int64_t position, uint64_t seed) const {
  const int64_t epoch = position / num_samples_;
  const uint64_t key = Hasher().Add("data order").Add(seed).Add(epoch).hash();
  return Permute(position % num_samples_, num_samples_, key);
}

}  // namespace dynatrain::trainer
