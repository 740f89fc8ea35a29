#include "dynatrain/bridge/tensor_state.h"

#include <vector>

#include <ATen/ATen.h>

#include "dynatrain/base/check.h"
#include "dynatrain/bridge/c10d_groups.h"

namespace dynatrain::bridge {
namespace {

// A box's extents.
std::vector<int64_t> ShapeOf(const vps::Box& box) {
  std::vector<int64_t> shape;
  for (int axis = 0; axis < box.dims(); ++axis) shape.push_back(box.extent(axis));
  return shape;
}

}  // namespace

at::ScalarType ScalarTypeOf(vps::DType dtype) {
  switch (dtype) {
    case vps::DType::kF32:
      return at::kFloat;
    case vps::DType::kBF16:
      return at::kBFloat16;
    case vps::DType::kF16:
      return at::kHalf;
    case vps::DType::kF64:
      return at::kDouble;
    case vps::DType::kI64:
      return at::kLong;
    case vps::DType::kI32:
      return at::kInt;
    case vps::DType::kU8:
      return at::kByte;
  }
  DT_CHECK_MSG(false, "no such dtype");
  return at::kByte;
}

at::Tensor BufferTensor(const elastic::LayoutInstance& instance, vps::BufferIndex index) {
  const vps::Buffer& buffer = instance.state.buffer(index);
  // The instance lends its memory to whoever trains on it.
  auto* data = const_cast<std::byte*>(instance.state.bytes(index).data());
  return at::from_blob(
      data, {buffer.elems}, [storage = instance.state.storage(index)](void*) {},
      at::TensorOptions(ScalarTypeOf(buffer.dtype)));
}

Result<at::Tensor> LocalTensor(const elastic::LayoutInstance& instance, std::string_view parameter,
                               vps::Kind kind) {
  const vps::StateCatalog& catalog = instance.map->catalog();
  const std::optional<vps::ParameterId> id = catalog.FindParameter(parameter);
  const std::optional<vps::TensorId> tensor = id ? catalog.Find(*id, kind) : std::nullopt;
  if (!tensor) return NotFound("no {} of a parameter {} is registered", KindName(kind), parameter);
  const std::vector<vps::Bucket> buckets = instance.map->BucketsOfRank(instance.rank);
  at::Tensor found;
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (const vps::BucketEntry& entry : buckets[b].entries) {
      if (entry.parameter != *id) continue;
      if (instance.map->CutOverDp(kind)) {
        return FailedPrecondition(
            "{} is cut over dp in layout {}; work on its flat buffers with BufferTensor",
            catalog.NameOf(*tensor), instance.map->layout().ToString());
      }
      if (found.defined()) {
        return FailedPrecondition("{} lies here in several pieces; work on BucketsOfRank's entries",
                                  catalog.NameOf(*tensor));
      }
      const auto buffer = instance.map->BufferOf(instance.rank, kind, static_cast<int32_t>(b));
      DT_CHECK_MSG(buffer.has_value(), "a bucket without the kind of its parameter");
      const std::vector<int64_t> shape = ShapeOf(entry.box);
      found =
          BufferTensor(instance, *buffer).narrow(0, entry.offset, entry.box.elems()).view(shape);
    }
  }
  return found;
}

Result<std::vector<at::Tensor>> LocalTensors(const elastic::LayoutInstance& instance,
                                             vps::Kind kind) {
  std::vector<at::Tensor> tensors;
  const vps::StateCatalog& catalog = instance.map->catalog();
  for (vps::ParameterId id = 0; id < static_cast<int>(catalog.parameters().size()); ++id) {
    if (!catalog.Find(id, kind)) continue;
    DT_ASSIGN_OR_RETURN(
        at::Tensor tensor,
        LocalTensor(instance, catalog.parameters()[static_cast<size_t>(id)].name, kind));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

c10::intrusive_ptr<c10d::Backend> BackendOf(const elastic::LayoutInstance& instance,
                                            const std::string& axis) {
  const auto at = instance.groups.find(axis);
  if (at == instance.groups.end() || at->second->spec().ranks.size() < 2) return {};
  return BackendOf(*at->second);
}

}  // namespace dynatrain::bridge
