// The safetensors file format (https://github.com/huggingface/safetensors#format): 8 bytes
// little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
#ifndef DYNATRAIN_IO_SAFETENSORS_H_
#define DYNATRAIN_IO_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/io/file.h"
#include "dynatrain/vps/catalog.h"

namespace dynatrain::io {

// One dense row-major tensor; `data` is somebody else's memory.
struct TensorView {
  std::string name;
  vps::DType dtype = vps::DType::kF32;
  std::vector<int64_t> shape;
  ConstByteSpan data;
};

struct TensorSpec {
  std::string name;
  vps::DType dtype = vps::DType::kF32;
  std::vector<int64_t> shape;
};

// Writes a file whose data need not be in memory at the same time. The file appears atomically with
// Finish; without it, nothing changes.
class SafetensorsWriter {
 public:
  // Names must be distinct and shapes make sense (kInvalidArgument).
  static Result<SafetensorsWriter> Create(const std::string& path,
                                          const std::vector<TensorSpec>& tensors,
                                          const std::map<std::string, std::string>& metadata);
  // The next bytes of the tensors' data: tensor by tensor in the order of `tensors`, in parts of any
  // length. They are written before the call returns.
  Status Append(ConstByteSpan data);
  // kInvalidArgument if there were fewer bytes, or more, than the tensors have.
  Status Finish();

 private:
  SafetensorsWriter(std::string path, AtomicFile file, uint64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), bytes_left_(bytes) {}
  std::string path_;
  AtomicFile file_;
  uint64_t bytes_left_;
};

// Replaces `path` atomically. Names must be distinct and data as long as shape and dtype say
// (kInvalidArgument).
Status WriteSafetensors(const std::string& path, const std::vector<TensorView>& tensors,
                        const std::map<std::string, std::string>& metadata);

// A mapped file; views live as long as it. Everything in the header is checked against the file's
// length.
class SafetensorsFile {
 public:
  // kDataLoss, naming file and fault, for a file that is truncated or is not safetensors.
  static Result<SafetensorsFile> Open(const std::string& path);

  const std::vector<TensorView>& tensors() const { return tensors_; }  // by name
  Result<TensorView> Find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile(std::string path, MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}
  Status Parse();

  std::string path_;
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace dynatrain::io

#endif  // DYNATRAIN_IO_SAFETENSORS_H_
