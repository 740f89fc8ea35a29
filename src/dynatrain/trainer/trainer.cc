#include "dynatrain/trainer/trainer.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "dynatrain/bridge/c10d_groups.h"
#include "dynatrain/bridge/fence.h"
#include "dynatrain/trainer/data_parallel.h"
#include "dynatrain/trainer/model.h"
#include "dynatrain/trainer/pipeline.h"

namespace dynatrain::trainer {
namespace {

// The communicator of `axis`, or a rank alone if the layout has no such group.
Comm CommOf(const elastic::LayoutInstance& instance, const std::string& axis) {
  const auto found = instance.groups.find(axis);
  if (found == instance.groups.end()) return {};
  const std::vector<RankId>& ranks = found->second->spec().ranks;
  if (ranks.size() == 1) return {};
  const auto position = std::find(ranks.begin(), ranks.end(), instance.rank) - ranks.begin();
  return {bridge::BackendOf(*found->second), found->second->spec(), static_cast<int>(position)};
}

// The stage whose copy of a parameter counts where it must count once.
int32_t FirstStageOf(const vps::Parameter& parameter, const vps::Layout& layout,
                     int32_t num_layers) {
  const vps::Home& home = parameter.homes.front();
  switch (home.place) {
    case vps::Home::Place::kEmbedding:
      return 0;
    case vps::Home::Place::kLayer:
      return layout.StageOfLayer(home.layer, num_layers);
    case vps::Home::Place::kHead:
      return layout.pp - 1;
  }
  return 0;
}

// One thread per rank, and so one order of every sum inside an operation.
void UseOneThread() {
  if (at::get_num_threads() != 1) at::set_num_threads(1);
}

float* FloatsAt(const at::Tensor& flat, int64_t offset) {
  return flat.mutable_data_ptr<float>() + offset;
}

uint16_t* Bf16At(const at::Tensor& flat, int64_t offset) {
  return reinterpret_cast<uint16_t*>(flat.mutable_data_ptr<at::BFloat16>()) + offset;
}

}  // namespace

class Trainer::Parts {
 public:
  Parts(const TrainerOptions& options, std::shared_ptr<const TextData> data,
        const elastic::LayoutInstance& instance, StageParameters parameters)
      : options_(options),
        data_(std::move(data)),
        layout_(instance.map->layout()),
        parameters_(std::move(parameters)),
        groups_(instance.groups),
        world_(CommOf(instance, "world")),
        tp_(CommOf(instance, "tp")),
        dp_(CommOf(instance, "dp")),
        pp_(CommOf(instance, "pp")),
        embedding_(CommOf(instance, "embedding")),
        model_(options.model, options.seq, options.micro_batch, &parameters_, tp_) {}

  Result<StepResult> Step(int64_t step, int ready) {
    UseOneThread();
    const int64_t first = (step - 1) * options_.global_batch;
    samples_.clear();
    DT_ASSIGN_OR_RETURN(const std::vector<MicroBatch> batches, LocalBatches([&](int64_t i) {
                          samples_.push_back(data_->Order(first + i, options_.seed));
                          return samples_.back();
                        }));
    const double tokens = static_cast<double>(options_.global_batch * options_.seq);
    parameters_.RefreshWeights();
    parameters_.ZeroGradients();
    const std::vector<double> losses = TrainMicroBatches(model_, pp_, batches, 1.0 / tokens);
    SumTiedGradients(parameters_, embedding_);
    ReduceGradients(parameters_.buckets(), dp_);
    StepResult result = Agree(losses, ready);
    result.lr = LearningRate(options_.schedule, step);
    Update(step, result);
    return result;
  }

  Agreement AgreeBetweenSteps(int ready, int decided) const {
    const at::Tensor sums = at::empty({2}, at::kLong);
    auto* out = sums.mutable_data_ptr<int64_t>();
    out[0] = ready;
    out[1] = decided;
    world_.AllReduceSum(sums);
    return {.ready = out[0], .decided = out[1]};
  }

  const std::vector<int64_t>& samples() const { return samples_; }

  Result<double> EvalLoss() {
    UseOneThread();
    DT_ASSIGN_OR_RETURN(const std::vector<MicroBatch> batches, FixedBatches());
    parameters_.RefreshWeights();
    const std::vector<double> losses = EvalMicroBatches(model_, pp_, batches);
    return Agree(losses, 0, /*with_gradients=*/false).loss;
  }

  Result<std::vector<float>> EvalLogits() {
    UseOneThread();
    DT_ASSIGN_OR_RETURN(const std::vector<MicroBatch> batches, FixedBatches());
    parameters_.RefreshWeights();
    std::vector<at::Tensor> logits;
    EvalMicroBatches(model_, pp_, batches, &logits);
    std::vector<float> all;
    for (const at::Tensor& part : logits) {
      all.insert(all.end(), FloatsAt(part, 0), FloatsAt(part, 0) + part.numel());
    }
    return all;
  }

  std::vector<GradientPart> Gradients() const {
    std::vector<GradientPart> parts;
    for (const StageBucket& bucket : parameters_.buckets()) {
      for (const ParameterRange& range : OwnRanges(bucket)) {
        const vps::BucketEntry entry = parameters_.PlaceOf(range.parameter).entry;
        std::vector<vps::Box> boxes;
        vps::AppendFlatRangeBoxes(entry.box, range.begin - entry.offset, range.end - entry.offset,
                                  &boxes);
        const float* from = FloatsAt(bucket.grads, range.begin);
        for (const vps::Box& box : boxes) {
          parts.push_back({range.parameter, box, {from, from + box.elems()}});
          from += box.elems();
        }
      }
    }
    return parts;
  }

 private:
  const vps::StateCatalog& catalog() const { return parameters_.map().catalog(); }

  // This dp position's micro-batches: a contiguous block of the step's. sample(i) is the i-th
  // sample of the global batch.
  template <class SampleOf>
  Result<std::vector<MicroBatch>> LocalBatches(SampleOf sample) const {
    const int64_t seq = options_.seq, rows = options_.micro_batch;
    const int64_t count = options_.micro_batches() / layout_.dp;
    std::vector<MicroBatch> batches;
    for (int64_t m = 0; m < count; ++m) {
      at::Tensor ids = at::empty({rows * seq}, at::kLong),
                 targets = at::empty({rows * seq}, at::kLong);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t in_batch = (parameters_.role().dp * count + m) * rows + row;
        DT_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens, data_->Sample(sample(in_batch)));
        std::copy(tokens.begin(), tokens.end() - 1, ids.mutable_data_ptr<int64_t>() + row * seq);
        std::copy(tokens.begin() + 1, tokens.end(),
                  targets.mutable_data_ptr<int64_t>() + row * seq);
      }
      batches.push_back({ids, targets});
    }
    return batches;
  }

  Result<std::vector<MicroBatch>> FixedBatches() const {
    return LocalBatches([](int64_t i) { return i; });
  }

  // What of a bucket this rank sums over dp, by parameter.
  std::vector<ParameterRange> OwnRanges(const StageBucket& bucket) const {
    if (!bucket.grads.defined()) return {};
    const vps::AxisRange slice = SliceOf(bucket, dp_);
    return RangesOf(catalog(), bucket.geometry, slice.begin, slice.end);
  }

  // The one reduction of a step over all ranks. Every entry but the first is written by one rank
  // alone, so its sum is exact, and every rank adds the entries up in the same order: losses by
  // micro-batch, squares by (parameter, tp, dp).
  StepResult Agree(const std::vector<double>& losses, int ready, bool with_gradients = true) const {
    const int64_t micro = options_.micro_batches();
    const auto parameters =
        static_cast<int64_t>(with_gradients ? catalog().parameters().size() : 0);
    const int64_t per_parameter = int64_t{layout_.tp} * layout_.dp;
    const at::Tensor sums = at::zeros({1 + micro + parameters * per_parameter}, at::kDouble);
    auto* out = sums.mutable_data_ptr<double>();
    out[0] = ready;
    if (tp_.position() == 0) {
      std::copy(losses.begin(), losses.end(),
                out + 1 + parameters_.role().dp * (micro / layout_.dp));
    }
    if (with_gradients) AddSquares(out + 1 + micro);
    world_.AllReduceSum(sums);

    StepResult result;
    result.ready_sum = static_cast<int64_t>(out[0]);
    result.tokens = options_.global_batch * options_.seq;
    for (int64_t m = 0; m < micro; ++m) result.loss += out[1 + m];
    result.loss /= static_cast<double>(result.tokens);
    double squares = 0;
    for (int64_t i = 1 + micro; i < sums.numel(); ++i) squares += out[i];
    result.grad_norm = std::sqrt(squares);
    result.clip_scale = ClipScale(result.grad_norm, options_.clip);
    return result;
  }

  // Squares of this rank's slices of the gradient at [parameter][tp][dp], of replicated and tied
  // parameters once.
  void AddSquares(double* out) const {
    for (const StageBucket& bucket : parameters_.buckets()) {
      for (const ParameterRange& range : OwnRanges(bucket)) {
        const vps::Parameter& parameter =
            catalog().parameters()[static_cast<size_t>(range.parameter)];
        const bool replica = parameter.split.axis < 0 && tp_.position() > 0;
        const bool copy =
            FirstStageOf(parameter, layout_, options_.model.layers) != parameters_.role().pp;
        if (replica || copy) continue;
        const int64_t slot =
            (int64_t{range.parameter} * layout_.tp + tp_.position()) * layout_.dp + dp_.position();
        out[slot] += SumOfSquares(FloatsAt(bucket.grads, range.begin), range.end - range.begin);
      }
    }
  }

  void Update(int64_t step, const StepResult& result) const {
    const AdamCoefficients decay =
        MakeAdamCoefficients(options_.adam, result.lr, step, result.clip_scale, true);
    const AdamCoefficients plain =
        MakeAdamCoefficients(options_.adam, result.lr, step, result.clip_scale, false);
    const bool cut = layout_.zero >= 1;
    if (!cut) GatherGradients(parameters_.buckets(), dp_);
    for (const StageBucket& bucket : parameters_.buckets()) {
      if (!bucket.exp_avg.defined()) continue;
      const int64_t moments_begin = bucket.moments_cut ? SliceOf(bucket, dp_).begin : 0;
      // Where the fp32 numbers that Adam updates lie.
      const at::Tensor& updated = bucket.bf16() ? bucket.master : bucket.values;
      const int64_t updated_begin = bucket.bf16() ? moments_begin : 0;
      const std::vector<ParameterRange> ranges =
          cut ? OwnRanges(bucket) : RangesOf(catalog(), bucket.geometry, 0, bucket.geometry.elems);
      for (const ParameterRange& range : ranges) {
        if (!range.updated) continue;
        float* numbers = FloatsAt(updated, range.begin - updated_begin);
        const int64_t count = range.end - range.begin;
        AdamW(numbers, FloatsAt(bucket.grads, range.begin),
              FloatsAt(bucket.exp_avg, range.begin - moments_begin),
              FloatsAt(bucket.exp_avg_sq, range.begin - moments_begin), count,
              range.decay ? decay : plain);
        if (bucket.bf16()) RoundToBf16(numbers, count, Bf16At(bucket.values, range.begin));
      }
    }
    if (cut) GatherParameters(parameters_.buckets(), dp_);
  }

  const TrainerOptions options_;
  const std::shared_ptr<const TextData> data_;
  const vps::Layout layout_;
  StageParameters parameters_;
  const elastic::GroupSet groups_;  // keeps the backends below alive
  const Comm world_, tp_, dp_, pp_, embedding_;
  const StageModel model_;
  std::vector<int64_t> samples_;  // of the last step
};

Trainer::Trainer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Trainer::~Trainer() = default;

Result<std::unique_ptr<Trainer>> Trainer::Make(const TrainerOptions& options,
                                               std::shared_ptr<const TextData> data,
                                               const elastic::LayoutInstance& instance) {
  DT_RETURN_IF_ERROR(CheckOptions(options));
  DT_RETURN_IF_ERROR(CheckLayout(options, instance.map->layout()));
  return bridge::FenceResult("build the trainer", [&]() -> Result<std::unique_ptr<Trainer>> {
    UseOneThread();
    DT_ASSIGN_OR_RETURN(StageParameters parameters, StageParameters::Make(instance));
    auto parts = std::make_unique<Parts>(options, std::move(data), instance, std::move(parameters));
    return std::unique_ptr<Trainer>(new Trainer(std::move(parts)));
  });
}

Result<StepResult> Trainer::Step(int64_t step, int ready) {
  return bridge::FenceResult(fmt::format("train step {}", step),
                             [&] { return parts_->Step(step, ready); });
}

Result<Agreement> Trainer::Agree(int ready, int decided) {
  return bridge::FenceResult("agree between steps",
                             [&] { return parts_->AgreeBetweenSteps(ready, decided); });
}

const std::vector<int64_t>& Trainer::SamplesOfLastStep() const { return parts_->samples(); }

Result<double> Trainer::EvalLoss() {
  return bridge::FenceResult("evaluate the fixed batch", [&] { return parts_->EvalLoss(); });
}

Result<std::vector<float>> Trainer::EvalLogits() {
  return bridge::FenceResult("evaluate the fixed batch", [&] { return parts_->EvalLogits(); });
}

std::vector<GradientPart> Trainer::Gradients() const { return parts_->Gradients(); }

}  // namespace dynatrain::trainer
