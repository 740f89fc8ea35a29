// The memory of one rank's stage as tensors: flat buckets, and each parameter as a view into them.
#ifndef DYNATRAIN_TRAINER_PARAMETERS_H_
#define DYNATRAIN_TRAINER_PARAMETERS_H_

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dynatrain/elastic/switch.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::trainer {

// A bucket of the layout's buffer rule with its memory; fp32 where nothing else is said.
struct StageBucket {
  vps::Bucket geometry;
  at::Tensor values;   // [elems], fp32 or bf16; the state's own memory
  at::Tensor weights;  // [elems]: what the model computes with; `values` itself, or their fp32 copy
  at::Tensor master;   // as exp_avg; with bf16 values only
  at::Tensor exp_avg;  // [elems], or with ZeRO [elems / dp]; the state's own; undefined if none
  at::Tensor exp_avg_sq;
  at::Tensor grads;  // [elems rounded up to a multiple of dp]; undefined if frozen
  // For the exchange between dp positions; like grads, of the dtype of values; undefined if dp = 1.
  at::Tensor received;
  bool moments_cut = false;  // master and moments hold only this dp position's slice

  bool bf16() const { return !values.is_same(weights); }
};

// Buckets of the stage of one rank. Values and moments belong to the state, whose storage is kept
// alive; gradient memory is made and touched here.
class StageParameters {
 public:
  // Precondition: `instance` is active. Refuses state that is neither fp32 nor bf16 with fp32
  // masters and moments.
  static Result<StageParameters> Make(const elastic::LayoutInstance& instance);

  const vps::Role& role() const { return role_; }
  const vps::LayoutShardMap& map() const { return *map_; }
  const std::vector<StageBucket>& buckets() const { return buckets_; }

  // The part of a parameter that lies here: where it is, and its tensor-parallel box.
  struct Place {
    int bucket;
    vps::BucketEntry entry;
  };
  Place PlaceOf(vps::ParameterId parameter) const;

  // An autograd leaf over the parameter's memory, [rows, columns] (columns 0: [rows]), whose .grad
  // is the view of the flat gradient.
  at::Tensor Leaf(vps::ParameterId parameter, int64_t rows, int64_t columns) const;
  // A second leaf over the same memory, for the head of a model whose tied embedding lies in this
  // stage as well; its .grad is apart, so that both homes' gradients are summed in one way wherever
  // they lie.
  at::Tensor TiedLeaf(vps::ParameterId parameter, int64_t rows, int64_t columns);

  // Takes over what the state holds now, where the model computes with a copy of it. Before each
  // step and evaluation.
  void RefreshWeights() const;
  // Before the first micro-batch of a step.
  void ZeroGradients() const;

  // Tied parameters that have a home here: gradient of this stage's bucket, and the apart one if
  // both homes are here.
  struct Tie {
    at::Tensor grad;   // flat
    at::Tensor apart;  // flat; undefined if the other home is on another stage
  };
  std::vector<Tie> Ties() const;

 private:
  StageParameters() = default;

  std::shared_ptr<const vps::LayoutShardMap> map_;
  vps::Role role_;
  std::vector<StageBucket> buckets_;
  std::vector<std::shared_ptr<engine::Storage>> storages_;
  std::vector<std::pair<vps::ParameterId, at::Tensor>> apart_;
};

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_PARAMETERS_H_
