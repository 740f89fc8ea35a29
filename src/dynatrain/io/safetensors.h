// The safetensors file format (https://github.com/huggingface/safetensors#format): 8 bytes
// little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
#ifndef DYNATRAIN_IO_SAFETENSORS_H_
#define DYNATRAIN_IO_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
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
