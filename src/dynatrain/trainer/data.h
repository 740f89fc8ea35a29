// Training data: the tokens of a file (token_file.h: the bytes of a text, or ids of a tokenizer), cut
// into samples, in a shuffled order that no layout changes.
//
// Sample i is tokens [i * seq, i * seq + seq] of the file: seq inputs and, one later, seq targets.
// Position p of training (counted over the whole run) is sample Order(p): every epoch of
// num_samples positions goes through all samples once, in an order of its own. Step s uses
// positions [(s - 1) * global_batch, s * global_batch).
#ifndef DYNATRAIN_TRAINER_DATA_H_
#define DYNATRAIN_TRAINER_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/trainer/token_file.h"

namespace dynatrain::trainer {

// `value` < n mapped one to one onto 0 .. n - 1, differently for each key: a Feistel network over
// the next even number of bits, walked until it falls below n.
int64_t Permute(int64_t value, int64_t n, uint64_t key);

// An open file, read where a sample lies. Not mapped: a file that is cut short while training runs
// must be an error, not the end of the process. Any thread.
class TextData {
 public:
  // Needs at least global_batch samples, and every token below `vocab`; the error names file, tokens
  // and what is needed. All bytes of a text are looked at here, of token ids the first MiB.
  static Result<std::shared_ptr<const TextData>> Open(const std::string& path, int64_t seq,
                                                      int64_t global_batch, int64_t vocab);
  ~TextData();
  TextData(const TextData&) = delete;
  TextData& operator=(const TextData&) = delete;

  int64_t num_samples() const { return num_samples_; }
  // The seq + 1 tokens of a sample. kDataLoss, naming the file, if it has become shorter since Open;
  // kInvalidArgument for a token outside the vocabulary.
  Result<std::vector<int64_t>> Sample(int64_t sample) const;
  // The sample at a position of the run with this seed.
  int64_t Order(int64_t position, uint64_t seed) const;

 private:
  TextData(TokenFile file, int fd, int64_t seq, int64_t vocab)
      : file_(std::move(file)),
        fd_(fd),
        seq_(seq),
        vocab_(vocab),
        num_samples_(file_.tokens > 0 ? (file_.tokens - 1) / seq : 0) {}
  Status CheckVocabulary() const;
  // `count` tokens from the given one on, all of them within the file at Open.
  Result<std::vector<int64_t>> Tokens(int64_t begin, int64_t count) const;
  // `count` bytes at `offset`, likewise.
  Status ReadAt(int64_t offset, unsigned char* bytes, int64_t count) const;

  const TokenFile file_;
  const int fd_;
  const int64_t seq_;
  const int64_t vocab_;
  const int64_t num_samples_;
};

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_DATA_H_
