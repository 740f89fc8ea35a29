// Training with bf16 parameters over real Gloo groups, ranks as threads.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <vector>

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include "dynatrain/models/catalog.h"
#include "dynatrain/trainer/init.h"
#include "dynatrain/trainer/testing_ranks.h"

namespace dynatrain::trainer {
namespace {

using testing::Tensors;

constexpr int64_t kSteps = 4;

class Bf16Test : public ::testing::Test {
 protected:
  Bf16Test()
      : path_(::testing::TempDir() + "dynatrain-bf16-" + std::to_string(::getpid()) + ".txt") {
    std::ofstream file(path_, std::ios::binary);
    for (int i = 0; i < 300; ++i) file << "the box holds " << i % 7 << " shards, ";
    options_ = testing::SmallOptions(path_);
    options_.global_batch = 6;
    options_.schedule = {.lr = 1e-2, .min_lr = 1e-3, .warmup = 1, .steps = 8};
  }
  ~Bf16Test() override { std::remove(path_.c_str()); }

  struct Run {
    std::vector<double> losses;
    Tensors parameters, masters;
  };

  void Train(const std::string& spec, const std::vector<vps::KindSpec>& kinds, Run* run) const {
    const auto data = *TextData::Open(options_.data_file, options_.seq, options_.global_batch, 129);
    const Status status = testing::RunRanks(
        *models::MakeCatalog(options_.model, kinds), *vps::ParseLayout(spec),
        [&](elastic::LayoutInstance& instance) -> Status {
          DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Make(options_, data, instance));
          // Values come after the trainer was made, as in a switch.
          DT_RETURN_IF_ERROR(
              InitialiseState(options_.model, *instance.map, instance.rank, 7, &instance.state));
          for (int64_t step = 1; step <= kSteps; ++step) {
            DT_ASSIGN_OR_RETURN(const StepResult result, trainer->Step(step, 0));
            if (instance.rank == 0) run->losses.push_back(result.loss);
          }
          run->parameters.AddState(instance, vps::Kind::kParam);
          run->masters.AddState(instance, vps::Kind::kMaster);
          return {};
        });
    ASSERT_TRUE(status.ok()) << status.ToString();
    // Faults also names replicas that differ: parameters are equal on all ranks.
    EXPECT_EQ(run->parameters.Faults() + run->masters.Faults(), "") << spec;
  }

  TrainerOptions options_;
  std::string path_;
};

// Case C16, as far as training goes: after updates every parameter on every rank is its master
// rounded.
TEST_F(Bf16Test, EveryParameterIsItsRoundedMasterInEveryLayout) {
  options_.model.tied = true;
  for (const char* spec : {"dp=1", "dp=3", "dp=3,zero=1", "tp=3,dp=1", "pp=2,dp=2,zero=1",
                           "tp=2,pp=3,dp=1", "dp=2,zero=1,zero_order=reverse-contiguous"}) {
    SCOPED_TRACE(spec);
    Run run;
    Train(spec, vps::Bf16AdamKinds(), &run);
    if (HasFatalFailure()) return;
    int64_t lost_bits = 0;
    ASSERT_EQ(run.parameters.values().size(), run.masters.values().size());
    for (const auto& [name, masters] : run.masters.values()) {
      const std::vector<float>& values = run.parameters.values().at(name);
      ASSERT_EQ(values.size(), masters.size());
      for (size_t i = 0; i < masters.size(); ++i) {
        const float expected = static_cast<float>(c10::BFloat16(masters[i]));
        ASSERT_EQ(values[i], expected) << name << " element " << i << ", master " << masters[i];
        lost_bits += values[i] != masters[i];
      }
    }
    EXPECT_GT(lost_bits, 1000) << "masters hold more than bf16 can";
  }
}

TEST_F(Bf16Test, LossFollowsFp32AndOtherLayouts) {
  Run fp32, bf16, pp3, dp3, dp3_zero;
  Train("dp=1", vps::Fp32AdamKinds(), &fp32);
  Train("dp=1", vps::Bf16AdamKinds(), &bf16);
  Train("pp=3,dp=1", vps::Bf16AdamKinds(), &pp3);
  Train("dp=3", vps::Bf16AdamKinds(), &dp3);
  Train("dp=3,zero=1", vps::Bf16AdamKinds(), &dp3_zero);
  if (HasFatalFailure()) return;
  EXPECT_EQ(pp3.losses, bf16.losses) << "pipeline stages change no bit";
  EXPECT_EQ(pp3.masters.values(), bf16.masters.values());
  EXPECT_EQ(dp3_zero.losses, dp3.losses) << "nor does ZeRO";
  EXPECT_EQ(dp3_zero.masters.values(), dp3.masters.values());
  EXPECT_NE(bf16.losses, fp32.losses);
  EXPECT_LT(bf16.losses.back(), 0.97 * bf16.losses.front()) << "it learns";
  for (size_t i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(bf16.losses[i], fp32.losses[i], 5e-3 * fp32.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(dp3.losses[i], bf16.losses[i], 5e-3 * bf16.losses[i]) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace dynatrain::trainer
