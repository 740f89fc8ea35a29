#include "dynatrain/trainer/token_file.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace dynatrain::trainer {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr int64_t kLlmcHeaderInts = 256;
constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};

// Numbers from the front of a file.
class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path, std::ios::binary) {}
  template <class T>
  bool Read(T* value) {
    return static_cast<bool>(file_.read(reinterpret_cast<char*>(value), sizeof(T)));
  }
  bool Starts(std::string_view text) {
    std::string start(text.size(), '\0');
    return file_.read(start.data(), static_cast<std::streamsize>(start.size())) && start == text;
  }

 private:
  std::ifstream file_;
};

Result<int64_t> SizeOf(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return NotFound("data file {}: {}", path, std::strerror(ENOENT));
  }
  if (error) return Unavailable("data file {}: {}", path, error.message());
  if (!fs::is_regular_file(status)) {
    return InvalidArgument("data file {} is no regular file; any text file would do", path);
  }
  const auto size = fs::file_size(path, error);
  if (error) return Unavailable("data file {}: {}", path, error.message());
  return static_cast<int64_t>(size);
}

// The bytes of one token by llm.c's magic and version; 0 if it is not one of its files.
int LlmcTokenBytes(int32_t magic, int32_t version) {
  if (magic == 20240520 && version == 1) return 2;
  if (magic == 20240801 && version == 7) return 4;
  return 0;
}

Result<TokenFile> LlmcFile(const std::string& path, int64_t size, int token_bytes, int32_t tokens) {
  TokenFile file{path, kLlmcHeaderInts * 4, tokens, token_bytes, "llm.c"};
  if (tokens < 0 || file.offset + file.tokens * token_bytes != size) {
    return DataLoss(
        "data file {}: its header tells of {} tokens of {} bytes, it has {} bytes; {} would be "
        "right",
        path, tokens, token_bytes, size, file.offset + file.tokens * token_bytes);
  }
  return file;
}

// The bytes of one token by Megatron's element type; 0 if tokens cannot be of it.
int MegatronTokenBytes(uint8_t code) {
  switch (code) {
    case 1:
      return 1;  // uint8
    case 4:
      return 4;  // int32
    case 8:
      return 2;  // uint16
    default:
      return 0;
  }
}

Result<TokenFile> MegatronFile(const std::string& index, const std::string& data) {
  DT_ASSIGN_OR_RETURN(const int64_t index_size, SizeOf(index));
  DT_ASSIGN_OR_RETURN(const int64_t size, SizeOf(data));
  Reader reader(index);
  uint64_t version = 0, sequences = 0, documents = 0;
  uint8_t code = 0;
  if (!reader.Starts(kMegatronMagic) || !reader.Read(&version) || !reader.Read(&code) ||
      !reader.Read(&sequences) || !reader.Read(&documents)) {
    return DataLoss("data file {} is no Megatron index", index);
  }
  const int token_bytes = MegatronTokenBytes(code);
  if (version != 1 || token_bytes == 0) {
    return InvalidArgument(
        "data file {}: version {} and element type {}; right are version 1 and 1 (uint8), 4 "
        "(int32) or 8 (uint16)",
        index, version, code);
  }
  constexpr int64_t kHeader = 9 + 8 + 1 + 8 + 8;
  const auto limit = static_cast<uint64_t>(index_size);
  if (sequences > limit || documents > limit ||
      kHeader + static_cast<int64_t>(sequences * 12 + documents * 8) != index_size) {
    return DataLoss("data file {}: {} sequences and {} documents do not fit its {} bytes", index,
                    sequences, documents, index_size);
  }
  int64_t tokens = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    int32_t length = 0;
    if (!reader.Read(&length) || length < 0) {
      return DataLoss("data file {}: sequence {} has length {}", index, i, length);
    }
    tokens += length;
  }
  if (tokens * token_bytes != size) {
    return DataLoss("data file {} has {} bytes, its index {} tells of {} tokens of {} bytes", data,
                    size, index, tokens, token_bytes);
  }
  return TokenFile{data, 0, tokens, token_bytes, "Megatron"};
}

}  // namespace

Result<TokenFile> FindTokens(const std::string& path) {
  const fs::path as_path(path);
  const auto beside = [&as_path](const char* extension) {
    return fs::path(as_path).replace_extension(extension).string();
  };
  if (as_path.extension() == ".idx") return MegatronFile(path, beside(".bin"));
  DT_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));
  std::array<int32_t, 3> header{};
  const bool has_header = Reader(path).Read(&header);
  const int token_bytes = has_header ? LlmcTokenBytes(header[0], header[1]) : 0;
  if (token_bytes > 0) return LlmcFile(path, size, token_bytes, header[2]);
  if (as_path.extension() == ".bin") {
    std::error_code ignored;
    if (fs::exists(beside(".idx"), ignored)) return MegatronFile(beside(".idx"), path);
    return InvalidArgument(
        "data file {} has neither the header of an llm.c file nor a {} beside it; rename it to "
        "have "
        "its bytes taken as text",
        path, beside(".idx"));
  }
  return TokenFile{path, 0, size, 1, "text"};
}

}  // namespace dynatrain::trainer
