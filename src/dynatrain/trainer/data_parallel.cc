#include "dynatrain/trainer/data_parallel.h"

#include <ATen/ATen.h>

namespace dynatrain::trainer {
namespace {

// The same memory as bytes, for exchanges that only move: Gloo needs not know the dtype.
at::Tensor Bytes(const at::Tensor& flat) { return flat.view(at::kByte); }

// Fills [dp * n] from everybody's slice of it, bucket by bucket, all under way at once.
void GatherSlices(const std::vector<at::Tensor>& wholes, const Comm& dp) {
  std::vector<Pending> pending;
  for (const at::Tensor& whole : wholes) {
    const int64_t n = whole.numel() / dp.size();
    const at::Tensor own = whole.narrow(0, dp.position() * n, n).clone();
    pending.push_back(dp.AllGatherInto(Bytes(whole), Bytes(own)));
  }
  for (Pending& p : pending) p.Wait();
}

}  // namespace

vps::AxisRange SliceOf(const StageBucket& bucket, const Comm& dp) {
  const int64_t n = bucket.grads.numel() / dp.size();
  return {dp.position() * n, (dp.position() + 1) * n};
}

void SumTiedGradients(const StageParameters& parameters, const Comm& embedding) {
  for (const StageParameters::Tie& tie : parameters.Ties()) {
    if (tie.apart.defined()) {
      tie.grad.add_(tie.apart);
    } else {
      embedding.AllReduceSum(tie.grad);
    }
  }
}

void ReduceGradients(const std::vector<StageBucket>& buckets, const Comm& dp) {
  for (const StageBucket& bucket : buckets) {
    if (dp.size() == 1 && bucket.bf16() && bucket.grads.defined()) {
      bucket.grads.copy_(bucket.grads.to(at::kBFloat16));
    }
  }
  if (dp.size() == 1) return;
  std::vector<Pending> pending;
  for (const StageBucket& bucket : buckets) {
    if (!bucket.grads.defined()) continue;
    const at::Tensor sent = bucket.bf16() ? bucket.grads.to(at::kBFloat16) : bucket.grads;
    pending.push_back(dp.AllToAll(Bytes(bucket.received), Bytes(sent)));
  }
  size_t next = 0;
  for (const StageBucket& bucket : buckets) {
    if (!bucket.grads.defined()) continue;
    pending[next++].Wait();
    const vps::AxisRange range = SliceOf(bucket, dp);
    const int64_t n = range.end - range.begin;
    const at::Tensor sum = bucket.grads.narrow(0, range.begin, n);
    sum.copy_(bucket.received.narrow(0, 0, n));
    for (int p = 1; p < dp.size(); ++p) sum.add_(bucket.received.narrow(0, p * n, n));
  }
}

void GatherGradients(const std::vector<StageBucket>& buckets, const Comm& dp) {
  if (dp.size() == 1) return;
  std::vector<at::Tensor> wholes;
  for (const StageBucket& bucket : buckets) {
    if (bucket.grads.defined()) wholes.push_back(bucket.grads);
  }
  GatherSlices(wholes, dp);
}

void GatherParameters(const std::vector<StageBucket>& buckets, const Comm& dp) {
  if (dp.size() == 1) return;
  std::vector<at::Tensor> wholes;
  for (const StageBucket& bucket : buckets) {
    if (bucket.grads.defined()) wholes.push_back(bucket.values);
  }
  GatherSlices(wholes, dp);
}

}  // namespace dynatrain::trainer
