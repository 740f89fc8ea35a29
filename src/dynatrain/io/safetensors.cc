#include "dynatrain/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

#include "dynatrain/base/json.h"

namespace dynatrain::io {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment =
    8;  // the data begins at a multiple of it: the header is filled up with spaces

struct DTypeCode {
  vps::DType dtype;
  std::string_view code;
};
constexpr std::array<DTypeCode, 7> kDTypes = {{{vps::DType::kF32, "F32"},
                                               {vps::DType::kBF16, "BF16"},
                                               {vps::DType::kF16, "F16"},
                                               {vps::DType::kF64, "F64"},
                                               {vps::DType::kI64, "I64"},
                                               {vps::DType::kI32, "I32"},
                                               {vps::DType::kU8, "U8"}}};

std::string_view CodeOf(vps::DType dtype) {
  for (const DTypeCode& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.code;
  }
  DT_CHECK_MSG(false, "dtype without a safetensors code");
  return "";
}

std::optional<vps::DType> DTypeOf(std::string_view code) {
  for (const DTypeCode& entry : kDTypes) {
    if (entry.code == code) return entry.dtype;
  }
  return std::nullopt;
}

// Bytes of a dense tensor; none if it is negative anywhere or does not fit 63 bits.
std::optional<int64_t> DenseBytes(const std::vector<int64_t>& shape, vps::DType dtype) {
  int64_t bytes = vps::ElemBytes(dtype);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string EncodeLength(uint64_t length) {
  std::string text(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) text[i] = static_cast<char>((length >> (8 * i)) & 0xff);
  return text;
}

// One header entry, checked against `data`, the file after its header.
Result<TensorView> ParseEntry(const std::string& name, const json& entry, ConstByteSpan data) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets") || !entry["dtype"].is_string() ||
      !entry["shape"].is_array() || !entry["data_offsets"].is_array() ||
      entry["data_offsets"].size() != 2) {
    return DataLoss("tensor {}: the header entry needs dtype, shape and two data_offsets", name);
  }
  TensorView view;
  view.name = name;
  const std::optional<vps::DType> dtype = DTypeOf(entry["dtype"].get<std::string>());
  if (!dtype) return DataLoss("tensor {}: dtype {} is not supported", name, entry["dtype"].dump());
  view.dtype = *dtype;
  for (const json& extent : entry["shape"]) {
    if (!extent.is_number_integer()) return DataLoss("tensor {}: the shape is not integers", name);
    view.shape.push_back(extent.get<int64_t>());
  }
  const json& offsets = entry["data_offsets"];
  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return DataLoss("tensor {}: data_offsets are not integers", name);
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (begin > end || end > data.size()) {
    return DataLoss("tensor {}: bytes {} to {} of {}: the file is cut short", name, begin, end,
                    data.size());
  }
  const std::optional<int64_t> bytes = DenseBytes(view.shape, view.dtype);
  if (!bytes || static_cast<uint64_t>(*bytes) != end - begin) {
    return DataLoss("tensor {}: {} bytes do not fit its shape and dtype", name, end - begin);
  }
  view.data = data.subspan(begin, end - begin);
  return view;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, const std::vector<TensorSpec>& tensors,
    const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  std::set<std::string> names;
  for (const TensorSpec& tensor : tensors) {
    const std::optional<int64_t> bytes = DenseBytes(tensor.shape, tensor.dtype);
    if (!bytes) return InvalidArgument("{}: tensor {} has no such shape", path, tensor.name);
    if (!names.insert(tensor.name).second) {
      return InvalidArgument("{}: two tensors are called {}", path, tensor.name);
    }
    const uint64_t end = offset + static_cast<uint64_t>(*bytes);
    header[tensor.name] = {
        {"dtype", CodeOf(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  DT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  DT_RETURN_IF_ERROR(file.Append(AsBytes(EncodeLength(text.size()))));
  DT_RETURN_IF_ERROR(file.Append(AsBytes(text)));
  return SafetensorsWriter(path, std::move(file), offset);
}

Status SafetensorsWriter::Append(ConstByteSpan data) {
  if (data.size() > bytes_left_) {
    return InvalidArgument("{}: {} bytes of data are left to come, not {}", path_, bytes_left_,
                           data.size());
  }
  bytes_left_ -= data.size();
  return file_.Append(data);
}

Status SafetensorsWriter::Finish() {
  if (bytes_left_ > 0) {
    return InvalidArgument("{}: {} bytes of data are missing", path_, bytes_left_);
  }
  return file_.Commit();
}

Status WriteSafetensors(const std::string& path, const std::vector<TensorView>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : tensors) {
    const std::optional<int64_t> bytes = DenseBytes(tensor.shape, tensor.dtype);
    if (!bytes || static_cast<size_t>(*bytes) != tensor.data.size()) {
      return InvalidArgument("{}: tensor {} has {} bytes, its shape and dtype need {}", path,
                             tensor.name, tensor.data.size(), bytes.value_or(-1));
    }
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  DT_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, specs, metadata));
  for (const TensorView& tensor : tensors) DT_RETURN_IF_ERROR(writer.Append(tensor.data));
  return writer.Finish();
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  DT_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  SafetensorsFile result(path, std::move(file));
  DT_RETURN_IF_ERROR(result.Parse().Within(path));
  return result;
}

Status SafetensorsFile::Parse() {
  const ConstByteSpan bytes = file_.bytes();
  if (bytes.size() < kLengthBytes)
    return DataLoss("{} bytes are too few for safetensors", bytes.size());
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  if (length > bytes.size() - kLengthBytes) {
    return DataLoss(
        "the header should have {} bytes, the file has {}: not safetensors, or cut short", length,
        bytes.size());
  }
  const Result<json> parsed = ParseJson(file_.text().substr(kLengthBytes, length));
  if (!parsed.ok()) return DataLoss("the header: {}", parsed.status().message());
  const json& header = *parsed;
  if (!header.is_object()) return DataLoss("the header is not a JSON object");
  const ConstByteSpan data = bytes.subspan(kLengthBytes + length);
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      DT_ASSIGN_OR_RETURN(TensorView view, ParseEntry(name, entry, data));
      tensors_.push_back(std::move(view));
      continue;
    }
    if (!entry.is_object()) return DataLoss("__metadata__ is not a JSON object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) return DataLoss("__metadata__ {} is not a string", key);
      metadata_[key] = value.get<std::string>();
    }
  }
  return {};
}

Result<TensorView> SafetensorsFile::Find(const std::string& name) const {
  const auto at = std::ranges::lower_bound(tensors_, name, {}, &TensorView::name);
  if (at == tensors_.end() || at->name != name) return NotFound("{} has no tensor {}", path_, name);
  return *at;
}

}  // namespace dynatrain::io
