// Comm: one communicator as the trainer uses it: a c10d group, or a rank that is alone.
//
// Every member of a group issues the same operations in the same order. Waits end at the group's
// own deadline. What c10d throws is thrown on with the operation, the group and its ranks in front;
// Trainer turns that into a Status.
#ifndef DYNATRAIN_TRAINER_COMM_H_
#define DYNATRAIN_TRAINER_COMM_H_

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dynatrain/elastic/groups.h"

namespace dynatrain::trainer {

// An operation under way. The tensors it works on stay alive with it; dropping it does not wait.
class Pending {
 public:
  Pending() = default;  // done
  // `what` and `group` are for the text of an error: "receive from rank 3".
  Pending(c10::intrusive_ptr<c10d::Work> work, at::Tensor keep, std::string what,
          std::shared_ptr<const elastic::GroupSpec> group)
      : work_(std::move(work)),
        keep_(std::move(keep)),
        what_(std::move(what)),
        group_(std::move(group)) {}
  void Wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor keep_;
  std::string what_;
  std::shared_ptr<const elastic::GroupSpec> group_;
};

// Copies share the group. All tensors are dense and contiguous.
class Comm {
 public:
  Comm() = default;  // alone: position 0 of 1, collectives copy or do nothing
  // `position`: of this rank in group.ranks.
  Comm(c10::intrusive_ptr<c10d::Backend> backend, const elastic::GroupSpec& group, int position)
      : backend_(std::move(backend)),
        group_(std::make_shared<elastic::GroupSpec>(group)),
        position_(position),
        size_(static_cast<int>(group.ranks.size())) {}

  int position() const { return position_; }
  int size() const { return size_; }

  // Element-wise sum over the group, in place; the same bits on every member.
  void AllReduceSum(const at::Tensor& tensor) const;
  // [..] on each member -> [size, ..] on all.
  at::Tensor AllGather(const at::Tensor& tensor) const;
  // `out` [size * n] receives `in` [n], both of one axis, of every member in order; `in` must not
  // lie in `out`.
  Pending AllGatherInto(const at::Tensor& out, const at::Tensor& in) const;
  // Block p of `in` [size * n] goes to member p; block p of `out` comes from member p.
  Pending AllToAll(const at::Tensor& out, const at::Tensor& in) const;
  // `tag` distinguishes messages between one pair that are under way at the same time. A send ends
  // only once the peer has posted its receive.
  Pending Send(const at::Tensor& tensor, int to, int tag) const;
  Pending Receive(const at::Tensor& tensor, int from, int tag) const;

 private:
  // In one round, added in the order of positions.
  void DirectSum(const at::Tensor& tensor) const;
  // Starts an operation and gives its errors the group's name.
  template <class Start>
  Pending Begin(std::string what, const at::Tensor& keep, Start start) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<const elastic::GroupSpec> group_;
  int position_ = 0;
  int size_ = 1;
};

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_COMM_H_
