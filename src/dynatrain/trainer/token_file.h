// What kind of file training data is, and where its tokens lie in it.
//
//   text        any other file: every byte is a token
//   llm.c       ID.bin: a header of 256 little-endian int32 (magic, version, count), then the tokens:
//               magic 20240520 version 1: uint16; magic 20240801 version 7: uint32
//   Megatron    NAME.bin of bare tokens beside NAME.idx ("MMIDIDX\0\0", version 1, element type,
//               sequence and document counts, lengths, positions); uint8, uint16 or int32. Training
//               takes the sequences as one stream, in the order of the file.
#ifndef DYNATRAIN_TRAINER_TOKEN_FILE_H_
#define DYNATRAIN_TRAINER_TOKEN_FILE_H_

#include <cstdint>
#include <string>

#include "dynatrain/base/status.h"

namespace dynatrain::trainer {

struct TokenFile {
  std::string path;    // of the file that holds the tokens
  int64_t offset = 0;  // of the first token, in bytes
  int64_t tokens = 0;
  int token_bytes = 1;        // little-endian, not negative: 1, 2 or 4
  std::string kind = "text";  // "text", "llm.c", "Megatron"
};

// `path` is a text, an llm.c file, or either of a Megatron pair. Fails naming file and fault
// (kNotFound, kInvalidArgument, kDataLoss) if there is none, it is no regular file, its header
// contradicts its length, or a .bin has neither header nor .idx.
Result<TokenFile> FindTokens(const std::string& path);

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_TOKEN_FILE_H_
