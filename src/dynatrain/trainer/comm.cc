#include "dynatrain/trainer/comm.h"

#include <ATen/ATen.h>

namespace dynatrain::trainer {

void Pending::Wait() {
  if (work_) work_->wait();
  work_.reset();
  keep_.reset();
}

void Comm::AllReduceSum(const at::Tensor& tensor) const {
  if (size_ == 1) return;
  std::vector<at::Tensor> tensors{tensor};
  backend_->allreduce(tensors)->wait();
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
  return {backend_->_allgather_base(to, from), in};
}

Pending Comm::AllToAll(const at::Tensor& out, const at::Tensor& in) const {
  if (size_ == 1) {
    out.copy_(in);
    return {};
  }
  at::Tensor to = out, from = in;
  std::vector<int64_t> even;
  return {backend_->alltoall_base(to, from, even, even), in};
}

Pending Comm::Send(const at::Tensor& tensor, int to, int tag) const {
  std::vector<at::Tensor> tensors{tensor};
  return {backend_->send(tensors, to, tag), tensor};
}

Pending Comm::Receive(const at::Tensor& tensor, int from, int tag) const {
  std::vector<at::Tensor> tensors{tensor};
  return {backend_->recv(tensors, from, tag), tensor};
}

}  // namespace dynatrain::trainer
