// A rank's state as at::Tensors: views of the memory that a switch fills, never copies.
#ifndef DYNATRAIN_BRIDGE_TENSOR_STATE_H_
#define DYNATRAIN_BRIDGE_TENSOR_STATE_H_

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dynatrain/base/status.h"
#include "dynatrain/elastic/switch.h"

namespace dynatrain::bridge {

at::ScalarType ScalarTypeOf(vps::DType dtype);

// The whole buffer `index` of the instance's rank, [elems]. The tensor keeps the memory alive; after
// a switch it is memory of the old layout, no longer anyone's state.
at::Tensor BufferTensor(const elastic::LayoutInstance& instance, vps::BufferIndex index);

// What this rank holds of `kind` of a parameter, contiguous, in the shape of its box: the logical
// shape with the axis of its split cut over tp. Undefined if the parameter lies on another pipeline
// stage. kNotFound if the catalog has no such state; kFailedPrecondition, naming the state and what
// to use instead, where it is no one box: cut over dp by ZeRO, or several pieces.
Result<at::Tensor> LocalTensor(const elastic::LayoutInstance& instance, std::string_view parameter,
                               vps::Kind kind);

// LocalTensor of every parameter that has `kind`, in the order of the catalog.
Result<std::vector<at::Tensor>> LocalTensors(const elastic::LayoutInstance& instance,
                                             vps::Kind kind);

// The c10d group of an axis ("tp", "dp", "pp", "world"); null if this rank is alone on it. Valid
// while the instance lives.
c10::intrusive_ptr<c10d::Backend> BackendOf(const elastic::LayoutInstance& instance,
                                            const std::string& axis);

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_TENSOR_STATE_H_
