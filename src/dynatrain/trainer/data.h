// Training data: any file as bytes, cut into samples, in a shuffled order that no layout changes.
//
// Sample i is bytes [i * seq, i * seq + seq] of the file: seq inputs and, one later, seq targets.
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

namespace dynatrain::trainer {

// `value` < n mapped one to one onto 0 .. n - 1, differently for each key: a Feistel network over
// the next even number of bits, walked until it falls below n.
int64_t Permute(int64_t value, int64_t n, uint64_t key);

// An open file, read where a sample lies. Not mapped: a file that is cut short while training runs
// must be an error, not the end of the process. Any thread.
class TextData {
 public:
  // Needs at least global_batch samples, and every byte below `vocab`; the error names file, bytes
  // and what is needed.
  static Result<std::shared_ptr<const TextData>> Open(const std::string& path, int64_t seq,
                                                      int64_t global_batch, int64_t vocab);
  ~TextData();
  TextData(const TextData&) = delete;
  TextData& operator=(const TextData&) = delete;

  int64_t num_samples() const { return num_samples_; }
  // The seq + 1 bytes of a sample. kDataLoss, naming the file, if it has become shorter since Open.
  Result<std::vector<unsigned char>> Sample(int64_t sample) const;
  // The sample at a position of the run with this seed.
  int64_t Order(int64_t position, uint64_t seed) const;

 private:
  TextData(std::string path, int fd, int64_t seq) : path_(std::move(path)), fd_(fd), seq_(seq) {}
  Status ReadSize();
  Status CheckVocabulary(int64_t vocab) const;
  // `count` bytes at `offset`, all of them within the size at Open.
  Status ReadAt(int64_t offset, unsigned char* bytes, int64_t count) const;

  const std::string path_;
  const int fd_;
  const int64_t seq_;
  int64_t size_ = 0;
  int64_t num_samples_ = 0;
};

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_DATA_H_
