// Training over real Gloo groups, ranks as threads: the same in every layout.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "dynatrain/base/random.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/trainer/init.h"
#include "dynatrain/trainer/testing_ranks.h"

namespace dynatrain::trainer {
namespace {

using testing::Tensors;

constexpr int64_t kSteps = 5;

// A text of words that repeat, so that there is something to learn.
std::string MakeText() {
  Random random(21);
  std::string text;
  while (text.size() < 4000) {
    for (const char* word : {"the ", "shard ", "map ", "holds ", "every ", "box ", "once. "}) {
      if (!random.OneIn(3)) text += word;
    }
  }
  return text;
}

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest()
      : path_(::testing::TempDir() + "dynatrain-trainer-" + std::to_string(::getpid()) + ".txt") {
    std::ofstream(path_, std::ios::binary) << MakeText();
    options_ = testing::SmallOptions(path_);
    options_.global_batch = 12;
    options_.schedule = {.lr = 2e-2, .min_lr = 1e-3, .warmup = 2, .steps = 8};
    options_.clip = 0.5;
    options_.adam.eps =
        1e-6;  // above the rounding noise of gradients, which Adam would blow up to whole steps
  }
  ~TrainerTest() override { std::remove(path_.c_str()); }

  std::shared_ptr<const vps::StateCatalog> Catalog() const {
    return *models::MakeCatalog(options_.model, vps::Fp32AdamKinds());
  }
  std::shared_ptr<const TextData> Data() const {
    return *TextData::Open(options_.data_file, options_.seq, options_.global_batch,
                           options_.model.vocab);
  }

  struct Run {
    std::vector<StepResult> steps;
    double eval_before = 0, eval_after = 0;
    Tensors initial, parameters, exp_avg, exp_avg_sq;
  };

  // Trains kSteps from the initial state in one layout.
  void Train(const std::string& spec, Run* run) const {
    const auto data = Data();
    const Status status = testing::RunRanks(
        Catalog(), *vps::ParseLayout(spec), [&](elastic::LayoutInstance& instance) -> Status {
          DT_RETURN_IF_ERROR(
              InitialiseState(options_.model, *instance.map, instance.rank, 7, &instance.state));
          run->initial.AddState(instance, vps::Kind::kParam);
          DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Make(options_, data, instance));
          DT_ASSIGN_OR_RETURN(const double before, trainer->EvalLoss());
          std::vector<StepResult> steps;
          for (int64_t step = 1; step <= kSteps; ++step) {
            DT_ASSIGN_OR_RETURN(const StepResult result,
                                trainer->Step(step, static_cast<int>(step % 2)));
            steps.push_back(result);
          }
          DT_ASSIGN_OR_RETURN(const double after, trainer->EvalLoss());
          run->parameters.AddState(instance, vps::Kind::kParam);
          run->exp_avg.AddState(instance, vps::Kind::kExpAvg);
          run->exp_avg_sq.AddState(instance, vps::Kind::kExpAvgSq);
          if (instance.rank == 0) {
            run->steps = steps;
            run->eval_before = before;
            run->eval_after = after;
          }
          return {};
        });
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(run->initial.Faults() + run->parameters.Faults() + run->exp_avg.Faults() +
                  run->exp_avg_sq.Faults(),
              "")
        << spec;
  }

  static void ExpectSameBits(const Run& a, const Run& b) {
    EXPECT_EQ(a.eval_before, b.eval_before);
    EXPECT_EQ(a.eval_after, b.eval_after);
    for (size_t i = 0; i < kSteps; ++i) {
      EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << "step " << i + 1;
      EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm) << "step " << i + 1;
    }
    EXPECT_TRUE(a.parameters.values() == b.parameters.values());
    EXPECT_TRUE(a.exp_avg.values() == b.exp_avg.values());
    EXPECT_TRUE(a.exp_avg_sq.values() == b.exp_avg_sq.values());
  }

  static void ExpectAlike(const Run& a, const Run& b) {
    EXPECT_TRUE(a.initial.values() == b.initial.values())
        << "every layout starts from the same bits";
    EXPECT_NEAR(a.eval_before, b.eval_before, 1e-6 * b.eval_before);
    for (size_t i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(a.steps[i].loss, b.steps[i].loss, 1e-6 * b.steps[i].loss) << "step " << i + 1;
      EXPECT_NEAR(a.steps[i].grad_norm, b.steps[i].grad_norm, 1e-4 * b.steps[i].grad_norm)
          << "step " << i + 1;
    }
  }

  TrainerOptions options_;
  std::string path_;
};

TEST_F(TrainerTest, LearnsTheSameInEveryLayout) {
  Run reference;
  Train("dp=1", &reference);
  ASSERT_EQ(reference.steps.size(), static_cast<size_t>(kSteps));
  EXPECT_NEAR(reference.steps[0].loss, std::log(129.0), 0.1) << "an untrained model knows nothing";
  EXPECT_LT(reference.steps.back().loss, 0.9 * reference.steps.front().loss) << "and learns";
  for (const char* spec : {"tp=2", "tp=3", "pp=2", "pp=3,split=1+1+1", "dp=2", "dp=3,zero=1",
                           "dp=4", "dp=6,zero=1,zero_order=reverse-contiguous",
                           "tp=2,pp=2,dp=2,zero=1,order=pp-dp-tp", "tp=2,pp=3,ranks=5+3+0-2+4"}) {
    SCOPED_TRACE(spec);
    const auto layout = vps::ParseLayout(spec);
    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    Run run;
    Train(spec, &run);
    if (HasFatalFailure()) return;
    ExpectAlike(run, reference);
    EXPECT_EQ(run.steps[0].ready_sum, layout->world_size());
    EXPECT_EQ(run.steps[1].ready_sum, 0);
  }
}

TEST_F(TrainerTest, ChangesNoBitWhenOnlyPipelineOrZeroChange) {
  options_.global_batch = 6;
  Run dp1, pp2, pp3, dp3, dp3_zero, dp3_pp2_zero;
  Train("dp=1", &dp1);
  Train("pp=2,dp=1", &pp2);
  Train("pp=3,dp=1", &pp3);
  Train("dp=3", &dp3);
  Train("dp=3,zero=1", &dp3_zero);
  Train("pp=2,dp=3,zero=1", &dp3_pp2_zero);
  if (HasFatalFailure()) return;
  ExpectSameBits(pp2, dp1);
  ExpectSameBits(pp3, dp1);
  ExpectSameBits(dp3_zero, dp3);
  ExpectSameBits(dp3_pp2_zero, dp3_zero);
}

// Case C12: a tied embedding is one tensor: one optimizer entry where its homes share a stage,
// equal copies where not.
TEST_F(TrainerTest, KeepsTiedEmbeddingsEqual) {
  options_.model.tied = true;
  options_.global_batch = 6;
  const auto catalog = Catalog();
  const auto one_stage = *vps::LayoutShardMap::Make(catalog, *vps::ParseLayout("dp=1"));
  int entries = 0;
  for (const vps::Bucket& bucket : one_stage->BucketsOf(0, 0)) {
    for (const ParameterRange& r : RangesOf(*catalog, bucket, 0, bucket.elems)) {
      entries += catalog->parameters()[static_cast<size_t>(r.parameter)].name == "embedding.weight";
    }
  }
  EXPECT_EQ(entries, 1);
  Run reference;
  Train("dp=1", &reference);
  for (const char* spec : {"pp=2,dp=1", "pp=3,dp=1"}) {
    SCOPED_TRACE(spec);
    Run run;
    Train(spec, &run);  // finds copies that differ
    if (HasFatalFailure()) return;
    ExpectSameBits(run, reference);
  }
  for (const char* spec : {"tp=2,pp=2", "pp=2,dp=3", "pp=2,dp=3,zero=1"}) {
    SCOPED_TRACE(spec);
    Run run;
    Train(spec, &run);
    if (HasFatalFailure()) return;
    ExpectAlike(run, reference);
  }
}

std::vector<std::byte> BytesOf(const elastic::LayoutInstance& instance) {
  std::vector<std::byte> all;
  for (int i = 0; i < instance.state.num_buffers(); ++i) {
    const ConstByteSpan bytes = instance.state.bytes(i);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

// Case C15: a trainer that is being prepared, at any step, changes nothing of the state, not even
// of its own memory.
TEST_F(TrainerTest, PreparingIsInert) {
  Run reference;
  Train("dp=2,zero=1", &reference);
  Run run;
  const auto data = Data();
  const Status status = testing::RunRanks(
      Catalog(), *vps::ParseLayout("dp=2,zero=1"),
      [&](elastic::LayoutInstance& instance) -> Status {
        DT_RETURN_IF_ERROR(
            InitialiseState(options_.model, *instance.map, instance.rank, 7, &instance.state));
        std::vector<StepResult> steps;
        std::unique_ptr<Trainer> trainer;
        for (int64_t step = 1; step <= kSteps; ++step) {
          const std::vector<std::byte> before = BytesOf(instance);
          // The next trainer is made while the last one is still there, on the same memory.
          DT_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> next,
                              Trainer::Make(options_, data, instance));
          if (BytesOf(instance) != before)
            return Internal("making a trainer changed the state at step {}", step);
          trainer = std::move(next);
          DT_ASSIGN_OR_RETURN(const StepResult result,
                              trainer->Step(step, static_cast<int>(step % 2)));
          steps.push_back(result);
        }
        DT_ASSIGN_OR_RETURN(const double eval_after, trainer->EvalLoss());
        run.parameters.AddState(instance, vps::Kind::kParam);
        run.exp_avg.AddState(instance, vps::Kind::kExpAvg);
        run.exp_avg_sq.AddState(instance, vps::Kind::kExpAvgSq);
        if (instance.rank == 0) {
          run.steps = steps;
          run.eval_after = eval_after;
        }
        return {};
      });
  ASSERT_TRUE(status.ok()) << status.ToString();
  run.eval_before = reference.eval_before;
  ExpectSameBits(run, reference);
}

// Case C18: state that a parameter does not have is not made up, and state of a frozen one is kept.
TEST_F(TrainerTest, LeavesStatelessAndFrozenParametersAlone) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  const auto whole = Catalog();
  for (vps::Parameter p : whole->parameters()) {
    if (p.name == "final_norm.weight") p.kinds.resize(1);  // trainable, no moments
    if (p.name == "layers.0.input_norm.weight") p.trainable = false;
    if (p.name == "layers.1.mlp.down.weight") {
      p.trainable = false;
      p.kinds.resize(1);
    }
    ASSERT_TRUE(catalog->Add(p).ok());
  }
  for (const char* spec : {"dp=1", "dp=3,zero=1", "pp=2,dp=2"}) {
    SCOPED_TRACE(spec);
    Tensors before, after, moments;
    const auto data = Data();
    const Status status = testing::RunRanks(
        catalog, *vps::ParseLayout(spec), [&](elastic::LayoutInstance& instance) -> Status {
          DT_RETURN_IF_ERROR(
              InitialiseState(options_.model, *instance.map, instance.rank, 7, &instance.state));
          const auto frozen = instance.map->catalog().FindParameter("layers.0.input_norm.weight");
          const auto moment = instance.map->catalog().Find(*frozen, vps::Kind::kExpAvg);
          for (const vps::Shard& s : instance.map->ShardsOf(instance.rank)) {
            if (s.tensor != *moment) continue;
            auto* data_of = reinterpret_cast<float*>(instance.state.bytes(s.buffer).data());
            for (int64_t i = 0; i < s.box.elems(); ++i)
              data_of[s.offset + i] = 0.25f;  // its old state
          }
          before.AddState(instance, vps::Kind::kParam);
          DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Make(options_, data, instance));
          for (int64_t step = 1; step <= 2; ++step)
            DT_RETURN_IF_ERROR(trainer->Step(step, 0).status());
          after.AddState(instance, vps::Kind::kParam);
          moments.AddState(instance, vps::Kind::kExpAvg);
          return {};
        });
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(before.Faults() + after.Faults() + moments.Faults(), "");
    for (const auto& [name, values] : after.values()) {
      const bool still = name == "final_norm.weight" || name == "layers.0.input_norm.weight" ||
                         name == "layers.1.mlp.down.weight";
      EXPECT_EQ(values == before.values().at(name), still) << name;
    }
    EXPECT_EQ(moments.values().count("final_norm.weight"), 0u);
    EXPECT_EQ(moments.values().at("layers.0.input_norm.weight"), std::vector<float>(24, 0.25f));
  }
}

// Case C20: 24 samples, global batch 4; DP4, after 2 steps DP2, after 2 more DP4 again. The trainers
// tell what they read.
TEST_F(TrainerTest, ReadsEachSampleOnceHoweverDpChanges) {
  std::ofstream(path_, std::ios::binary | std::ios::trunc) << MakeText().substr(0, 24 * 12 + 1);
  options_.global_batch = 4;
  const auto data = Data();
  ASSERT_EQ(data->num_samples(), 24);
  // {step: {dp position: ids}}
  using Read = std::map<int64_t, std::map<int32_t, std::vector<int64_t>>>;
  const auto read_in = [&](const std::string& spec, int64_t first, int64_t last, Read* read) {
    std::mutex mutex;
    const Status status = testing::RunRanks(
        Catalog(), *vps::ParseLayout(spec), [&](elastic::LayoutInstance& instance) -> Status {
          DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Make(options_, data, instance));
          const int32_t dp = instance.map->layout().RoleOfRank(instance.rank)->dp;
          for (int64_t step = first; step <= last; ++step) {
            DT_RETURN_IF_ERROR(trainer->Step(step, 0).status());
            const std::lock_guard lock(mutex);
            const auto [told, fresh] = (*read)[step].try_emplace(dp, trainer->SamplesOfLastStep());
            if (!fresh && told->second != trainer->SamplesOfLastStep())
              return Internal("step {}: ranks of dp position {} read other samples", step, dp);
          }
          return {};
        });
    EXPECT_EQ(status.ToString(), "ok") << spec;
  };
  const auto in_order = [](const Read& read) {
    std::vector<int64_t> ids;
    for (const auto& [step, parts] : read) {
      for (const auto& [dp, part] : parts) ids.insert(ids.end(), part.begin(), part.end());
    }
    return ids;
  };
  Read still, changing;
  read_in("dp=1", 1, 6, &still);
  read_in("dp=4", 1, 2, &changing);
  read_in("tp=3,pp=2,dp=2", 3, 4, &changing);
  read_in("dp=4", 5, 6, &changing);
  const std::vector<int64_t> ids = in_order(changing);
  EXPECT_EQ(ids, in_order(still));
  EXPECT_EQ(ids.size(), 24u);
  EXPECT_EQ(std::set<int64_t>(ids.begin(), ids.end()).size(), 24u) << "each exactly once";
  for (const auto& [step, parts] : changing)
    EXPECT_EQ(parts.size(), step == 3 || step == 4 ? 2u : 4u) << "step " << step;
}

TEST_F(TrainerTest, AStepWithoutItsPeerIsAnErrorAndNoHang) {
  const auto data = Data();
  for (const char* spec : {"tp=2", "pp=2", "dp=2"}) {
    Status seen;
    const Status status = testing::RunRanks(
        Catalog(), *vps::ParseLayout(spec), [&](elastic::LayoutInstance& instance) -> Status {
          DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Make(options_, data, instance));
          if (instance.rank == 0) seen = trainer->Step(1, 0).status();
          return {};  // rank 1 leaves, and its connections close
        });
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(seen.code(), StatusCode::kUnavailable) << spec << ": " << seen.ToString();
    EXPECT_EQ(seen.message().rfind("train step 1", 0), 0u) << seen.ToString();
  }
}

// Every step in another layout, the state carried over by hand as whole tensors.
TEST_F(TrainerTest, GoesOnInAnotherLayoutAsIfNothingHadHappened) {
  Run reference;
  Train("dp=1", &reference);
  const auto data = Data();
  const char* specs[] = {"tp=2,dp=2,zero=1", "pp=3,dp=1", "pp=1,dp=1", "tp=3,dp=2", "dp=6,zero=1"};
  const vps::Kind kinds[] = {vps::Kind::kParam, vps::Kind::kExpAvg, vps::Kind::kExpAvgSq};
  double fixed_before = 0;
  std::vector<std::map<std::string, std::vector<float>>> carried(3);
  for (int64_t step = 1; step <= kSteps; ++step) {
    SCOPED_TRACE(specs[step - 1]);
    Tensors written[3], read[3];
    for (size_t k = 0; k < 3; ++k) {
      for (const auto& [name, values] : carried[k]) written[k].Set(name, values);
    }
    double loss = 0, fixed = 0, fixed_after = 0;
    const Status status = testing::RunRanks(
        Catalog(), *vps::ParseLayout(specs[step - 1]),
        [&](elastic::LayoutInstance& instance) -> Status {
          DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Make(options_, data, instance));
          // Values come after the trainer was made, as in a switch.
          if (step == 1) {
            DT_RETURN_IF_ERROR(
                InitialiseState(options_.model, *instance.map, instance.rank, 7, &instance.state));
          } else {
            for (size_t k = 0; k < 3; ++k) written[k].WriteTo(&instance, kinds[k]);
          }
          DT_ASSIGN_OR_RETURN(const double fixed_here, trainer->EvalLoss());
          DT_ASSIGN_OR_RETURN(const StepResult result, trainer->Step(step, 0));
          DT_ASSIGN_OR_RETURN(const double after_here, trainer->EvalLoss());
          for (size_t k = 0; k < 3; ++k) read[k].AddState(instance, kinds[k]);
          if (instance.rank == 0) {
            loss = result.loss;
            fixed = fixed_here;
            fixed_after = after_here;
          }
          return {};
        });
    ASSERT_TRUE(status.ok()) << status.ToString();
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(read[k].Faults(), "");
      carried[k] = read[k].values();
    }
    EXPECT_NEAR(loss, reference.steps[static_cast<size_t>(step - 1)].loss, 1e-6 * loss)
        << "step " << step;
    if (step > 1) {
      EXPECT_NEAR(fixed, fixed_before, 1e-6 * fixed);
    }
    if (step == 3) {
      EXPECT_EQ(fixed, fixed_before) << "only pp changed";
    }
    fixed_before = fixed_after;
  }
}

}  // namespace
}  // namespace dynatrain::trainer
