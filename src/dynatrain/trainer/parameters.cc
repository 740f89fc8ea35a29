#include "dynatrain/trainer/parameters.h"

#include <ATen/ATen.h>

namespace dynatrain::trainer {
namespace {

// The tensor over one buffer of the state, or undefined if there is no such buffer.
Result<at::Tensor> StateTensorOf(const elastic::LayoutInstance& instance, vps::Kind kind,
                                 int32_t bucket,
                                 std::vector<std::shared_ptr<engine::Storage>>* storages) {
  const std::optional<vps::BufferIndex> index = instance.map->BufferOf(instance.rank, kind, bucket);
  if (!index) return at::Tensor();
  const vps::Buffer& buffer = instance.state.buffer(*index);
  const bool bf16 = buffer.dtype == vps::DType::kBF16 && kind == vps::Kind::kParam;
  if (buffer.dtype != vps::DType::kF32 && !bf16) {
    return InvalidArgument(
        "state buffer {} is {}; the trainer works on fp32, and on bf16 parameters", buffer.name,
        vps::DTypeName(buffer.dtype));
  }
  storages->push_back(instance.state.storage(*index));
  // The instance lends its memory to the trainer, which is the one who changes it.
  auto* data = const_cast<std::byte*>(instance.state.bytes(*index).data());
  return at::from_blob(data, {buffer.elems}, bf16 ? at::kBFloat16 : at::kFloat);
}

at::Tensor MakeLeaf(const at::Tensor& flat, const at::Tensor& flat_grad, int64_t rows,
                    int64_t columns) {
  const std::vector<int64_t> shape =
      columns == 0 ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, columns};
  at::Tensor leaf = flat.view(shape).detach();
  if (flat_grad.defined()) {
    leaf.requires_grad_(true);
    leaf.mutable_grad() = flat_grad.view(shape);
  }
  return leaf;
}

}  // namespace

Result<StageParameters> StageParameters::Make(const elastic::LayoutInstance& instance) {
  StageParameters p;
  p.map_ = instance.map;
  const vps::Layout& layout = instance.map->layout();
  p.role_ = *layout.RoleOfRank(instance.rank);
  int32_t index = 0;
  for (vps::Bucket& geometry : instance.map->BucketsOf(p.role_.pp, p.role_.tp)) {
    StageBucket bucket;
    DT_ASSIGN_OR_RETURN(bucket.values,
                        StateTensorOf(instance, vps::Kind::kParam, index, &p.storages_));
    bucket.weights = bucket.values.scalar_type() == at::kFloat
                         ? bucket.values
                         : at::zeros(bucket.values.sizes(), at::kFloat);
    DT_ASSIGN_OR_RETURN(bucket.master,
                        StateTensorOf(instance, vps::Kind::kMaster, index, &p.storages_));
    DT_ASSIGN_OR_RETURN(bucket.exp_avg,
                        StateTensorOf(instance, vps::Kind::kExpAvg, index, &p.storages_));
    DT_ASSIGN_OR_RETURN(bucket.exp_avg_sq,
                        StateTensorOf(instance, vps::Kind::kExpAvgSq, index, &p.storages_));
    if (bucket.bf16() != bucket.master.defined() && bucket.exp_avg.defined()) {
      return InvalidArgument("bucket {}: bf16 parameters need an fp32 master, fp32 ones have none",
                             geometry.name);
    }
    bucket.moments_cut = instance.map->CutOverDp(vps::Kind::kExpAvg);
    if (geometry.trainable) {
      const int64_t slice = (geometry.elems + layout.dp - 1) / layout.dp;
      bucket.grads = at::zeros({slice * layout.dp}, at::kFloat);
      if (layout.dp > 1) {
        bucket.received = at::zeros(bucket.grads.sizes(), bucket.values.scalar_type());
      }
    }
    bucket.geometry = std::move(geometry);
    p.buckets_.push_back(std::move(bucket));
    ++index;
  }
  return p;
}

StageParameters::Place StageParameters::PlaceOf(vps::ParameterId parameter) const {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const vps::BucketEntry& entry : buckets_[b].geometry.entries) {
      if (entry.parameter == parameter) return {static_cast<int>(b), entry};
    }
  }
  DT_CHECK_MSG(false, "the stage does not hold parameter " +
                          map_->catalog().parameters()[static_cast<size_t>(parameter)].name);
  return {};
}

at::Tensor StageParameters::Leaf(vps::ParameterId parameter, int64_t rows, int64_t columns) const {
  const Place place = PlaceOf(parameter);
  const StageBucket& bucket = buckets_[static_cast<size_t>(place.bucket)];
  const int64_t elems = place.entry.box.elems();
  at::Tensor grad;
  if (bucket.grads.defined()) grad = bucket.grads.narrow(0, place.entry.offset, elems);
  return MakeLeaf(bucket.weights.narrow(0, place.entry.offset, elems), grad, rows, columns);
}

at::Tensor StageParameters::TiedLeaf(vps::ParameterId parameter, int64_t rows, int64_t columns) {
  const Place place = PlaceOf(parameter);
  const StageBucket& bucket = buckets_[static_cast<size_t>(place.bucket)];
  const int64_t elems = place.entry.box.elems();
  at::Tensor grad;
  if (bucket.grads.defined()) {
    grad = at::zeros({elems}, at::kFloat);
    apart_.emplace_back(parameter, grad);
  }
  return MakeLeaf(bucket.weights.narrow(0, place.entry.offset, elems), grad, rows, columns);
}

void StageParameters::RefreshWeights() const {
  for (const StageBucket& bucket : buckets_) {
    if (bucket.bf16()) bucket.weights.copy_(bucket.values);
  }
}

void StageParameters::ZeroGradients() const {
  for (const StageBucket& bucket : buckets_) {
    if (bucket.grads.defined()) bucket.grads.zero_();
  }
  for (const auto& [parameter, grad] : apart_) grad.zero_();
}

std::vector<StageParameters::Tie> StageParameters::Ties() const {
  std::vector<Tie> ties;
  for (const StageBucket& bucket : buckets_) {
    if (!bucket.grads.defined()) continue;
    for (const vps::BucketEntry& entry : bucket.geometry.entries) {
      const vps::Parameter& parameter =
          map_->catalog().parameters()[static_cast<size_t>(entry.parameter)];
      if (parameter.homes.size() < 2) continue;
      Tie tie{bucket.grads.narrow(0, entry.offset, entry.box.elems()), {}};
      for (const auto& [id, grad] : apart_) {
        if (id == entry.parameter) tie.apart = grad;
      }
      ties.push_back(tie);
    }
  }
  return ties;
}

}  // namespace dynatrain::trainer
