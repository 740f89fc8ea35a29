#include "dynatrain/trainer/comm.h"

#include <stdexcept>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dynatrain/bridge/fence.h"

namespace dynatrain::trainer {
namespace {

// Up to here, latency counts more than bytes: everybody sends all to everybody at once, while
// Gloo's ring takes 2 (size - 1) rounds. A training step at tp=4 on two cores (48 KiB each) costs
// less than half the processor time.
constexpr int64_t kDirectBytes = 256 * 1024;

// Inside a catch block: throws what was caught on, with operation and group in front.
[[noreturn]] void ThrowNamed(const std::string& what, const elastic::GroupSpec& group) {
  const Status status = bridge::StatusOfException(
      fmt::format("{} in group {} of ranks {}", what, group.name, fmt::join(group.ranks, ",")));
  throw std::runtime_error(status.message());
}

}  // namespace

void Pending::Wait() {
  try {
    if (work_) work_->wait();
  } catch (...) {
    ThrowNamed(what_, *group_);
  }
  work_.reset();
  keep_.reset();
}

template <class Start>
Pending Comm::Begin(std::string what, const at::Tensor& keep, Start start) const {
  try {
    return {start(), keep, what, group_};
  } catch (...) {
    ThrowNamed(what, *group_);
  }
}

void Comm::AllReduceSum(const at::Tensor& tensor) const {
  if (size_ == 1) return;
  if (static_cast<int64_t>(tensor.nbytes()) <= kDirectBytes) return DirectSum(tensor);
  std::vector<at::Tensor> tensors{tensor};
  Begin("sum", tensor, [&] { return backend_->allreduce(tensors); }).Wait();
}

void Comm::DirectSum(const at::Tensor& tensor) const {
  const at::Tensor flat = tensor.view({-1});
  const at::Tensor copies = flat.expand({size_, flat.numel()}).contiguous().view({-1});
  const at::Tensor parts = at::empty_like(copies);
  AllToAll(parts, copies).Wait();
  flat.copy_(parts.narrow(0, 0, flat.numel()));
  for (int p = 1; p < size_; ++p) flat.add_(parts.narrow(0, p * flat.numel(), flat.numel()));
}

at::Tensor Comm::AllGather(const at::Tensor& tensor) const {
  if (size_ == 1) return tensor.unsqueeze(0);
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.insert(shape.begin(), size_);
  at::Tensor out = at::empty({size_ * tensor.numel()}, tensor.options());
  AllGatherInto(out, tensor.view({-1})).Wait();
  return out.view(shape);
}

Pending Comm::AllGatherInto(const at::Tensor& out, const at::Tensor& in) const {
  if (size_ == 1) {
    out.copy_(in);
    return {};
  }
  at::Tensor to = out, from = in;
  return Begin("all-gather", in, [&] { return backend_->_allgather_base(to, from); });
}

Pending Comm::AllToAll(const at::Tensor& out, const at::Tensor& in) const {
  if (size_ == 1) {
    out.copy_(in);
    return {};
  }
  at::Tensor to = out, from = in;
  std::vector<int64_t> even;
  return Begin("all-to-all", in, [&] { return backend_->alltoall_base(to, from, even, even); });
}

Pending Comm::Send(const at::Tensor& tensor, int to, int tag) const {
  std::vector<at::Tensor> tensors{tensor};
  return Begin(fmt::format("send to rank {}", group_->ranks[static_cast<size_t>(to)]), tensor,
               [&] { return backend_->send(tensors, to, tag); });
}

Pending Comm::Receive(const at::Tensor& tensor, int from, int tag) const {
  std::vector<at::Tensor> tensors{tensor};
  return Begin(fmt::format("receive from rank {}", group_->ranks[static_cast<size_t>(from)]),
               tensor, [&] { return backend_->recv(tensors, from, tag); });
}

}  // namespace dynatrain::trainer
