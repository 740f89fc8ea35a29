// The trainer against transformers' LlamaForCausalLM and torch.optim.AdamW
// (scripts/make_golden.py): logits, loss, gradients before and after clipping, and the parameters
// after three steps, in layouts of up to eight ranks.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dynatrain/io/safetensors.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/trainer/testing_ranks.h"

namespace dynatrain::trainer {
namespace {

using testing::Tensors;

constexpr double kTolerance = 1e-5;  // of the largest element of each tensor

class Golden {
 public:
  explicit Golden(const std::string& variant)
      : stem_(std::string(DYNATRAIN_TESTDATA) + "/golden_" + variant),
        file_(*io::SafetensorsFile::Open(stem_ + ".safetensors")),
        config_(nlohmann::json::parse(file_.metadata().at("config"))) {}

  TrainerOptions Options() const {
    const auto integer = [this](const char* key) { return config_.at(key).get<int64_t>(); };
    const auto number = [this](const char* key) { return config_.at(key).get<double>(); };
    TrainerOptions o;
    o.model.name = "golden";
    o.model.layers = static_cast<int32_t>(integer("layers"));
    o.model.hidden = integer("hidden");
    o.model.heads = integer("heads");
    o.model.kv_heads = integer("kv_heads");
    o.model.head_dim = integer("head_dim");
    o.model.ffn = integer("ffn");
    o.model.vocab = integer("vocab");
    o.model.max_positions = integer("seq");
    o.model.rope_theta = number("rope_theta");
    o.model.norm_eps = number("norm_eps");
    o.model.tied = integer("tied") != 0;
    o.data_file = stem_ + ".bytes";
    o.seq = integer("seq");
    o.global_batch = integer("sequences");
    o.micro_batch = 1;
    o.schedule = {.lr = number("lr"), .min_lr = number("lr"), .warmup = 0, .steps = 3};
    o.adam = {.beta1 = number("beta1"),
              .beta2 = number("beta2"),
              .eps = number("eps"),
              .weight_decay = number("weight_decay")};
    o.clip = number("clip");
    return o;
  }

  // Empty, and the test failed, if there is none.
  std::vector<float> Floats(const std::string& name) const {
    const auto found = file_.Find(name);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    if (!found.ok()) return {};
    const io::TensorView view = *found;
    const auto* data = reinterpret_cast<const float*>(view.data.data());
    return {data, data + view.data.size() / sizeof(float)};
  }
  // The steps whose parameters this file keeps.
  std::vector<int> Steps() const {
    std::vector<int> steps;
    for (int step = 1; step <= 3; ++step) {
      if (file_.Find(fmt::format("step{}/final_norm.weight", step)).ok()) steps.push_back(step);
    }
    return steps;
  }

 private:
  std::string stem_;
  io::SafetensorsFile file_;
  nlohmann::json config_;
};

// What all ranks of one run said.
struct Observed {
  std::mutex mutex;
  std::vector<float> logits;  // [sequences, seq, vocab]
  double eval_loss = 0;
  std::vector<StepResult> steps;
  Tensors gradients;
  Tensors parameters[3];
};

// Puts a rank's logits [sequences / dp, seq, its vocabulary rows] where they belong.
void PutLogits(const TrainerOptions& o, const elastic::LayoutInstance& instance,
               const std::vector<float>& local, std::vector<float>* all) {
  const vps::Layout& layout = instance.map->layout();
  const vps::Role role = *layout.RoleOfRank(instance.rank);
  if (role.pp != layout.pp - 1) {
    EXPECT_TRUE(local.empty());
    return;
  }
  const vps::AxisRange rows =
      vps::SplitAxis(vps::Split::Balanced(0), o.model.vocab, layout.tp, role.tp);
  const int64_t tokens = o.global_batch / layout.dp * o.seq, width = rows.end - rows.begin;
  ASSERT_EQ(static_cast<int64_t>(local.size()), tokens * width);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t v = 0; v < width; ++v) {
      (*all)[static_cast<size_t>((role.dp * tokens + t) * o.model.vocab + rows.begin + v)] =
          local[static_cast<size_t>(t * width + v)];
    }
  }
}

Status Observe(const TrainerOptions& options, const Tensors& weights,
               elastic::LayoutInstance& instance, Observed* out) {
  weights.WriteTo(&instance, vps::Kind::kParam);
  DT_ASSIGN_OR_RETURN(
      std::shared_ptr<const TextData> data,
      TextData::Open(options.data_file, options.seq, options.global_batch, options.model.vocab));
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                      Trainer::Make(options, data, instance));
  DT_ASSIGN_OR_RETURN(const std::vector<float> logits, trainer->EvalLogits());
  DT_ASSIGN_OR_RETURN(const double eval_loss, trainer->EvalLoss());
  for (int64_t step = 1; step <= 3; ++step) {
    DT_ASSIGN_OR_RETURN(const StepResult result, trainer->Step(step, 1));
    out->parameters[step - 1].AddState(instance, vps::Kind::kParam);
    if (step == 1) out->gradients.AddGradients(instance.map->catalog(), trainer->Gradients());
    if (instance.rank == 0) out->steps.push_back(result);
  }
  const std::lock_guard lock(out->mutex);
  out->eval_loss = eval_loss;
  PutLogits(options, instance, logits, &out->logits);
  return {};
}

// Every parameter of the model is among `tensors` and in the file, and is the same.
void ExpectClose(const Golden& golden, const vps::StateCatalog& catalog, const std::string& prefix,
                 const Tensors& tensors, double scale = 1.0) {
  EXPECT_EQ(tensors.Faults(), "") << prefix;
  EXPECT_EQ(tensors.values().size(), catalog.parameters().size()) << prefix;
  for (const vps::Parameter& p : catalog.parameters()) {
    const std::string name = prefix + "/" + p.name;
    const auto found = tensors.values().find(p.name);
    if (found == tensors.values().end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    std::vector<float> scaled = found->second;
    EXPECT_EQ(static_cast<int64_t>(scaled.size()), vps::ElemCount(p.shape)) << name;
    for (float& value : scaled) value = static_cast<float>(value * scale);
    EXPECT_LE(testing::RelativeDifference(scaled, golden.Floats(name)), kTolerance) << name;
  }
}

struct Case {
  const char* variant;
  const char* spec;
};

class GoldenTest : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenTest, AgreesWithTheReference) {
  const Golden golden(GetParam().variant);
  const TrainerOptions options = golden.Options();
  const auto catalog = *models::MakeCatalog(options.model, vps::Fp32AdamKinds());
  const vps::Layout layout = *vps::ParseLayout(GetParam().spec);
  Tensors weights;
  for (const vps::Parameter& p : catalog->parameters())
    weights.Set(p.name, golden.Floats("weights/" + p.name));

  Observed seen;
  seen.logits.resize(golden.Floats("logits").size());
  const Status status = testing::RunRanks(catalog, layout, [&](elastic::LayoutInstance& instance) {
    return Observe(options, weights, instance, &seen);
  });
  ASSERT_TRUE(status.ok()) << status.ToString();

  EXPECT_LE(testing::RelativeDifference(seen.logits, golden.Floats("logits")), kTolerance);
  const double loss = static_cast<double>(golden.Floats("loss")[0]);
  EXPECT_NEAR(seen.eval_loss, loss, kTolerance * loss);
  EXPECT_NEAR(seen.steps[0].loss, loss, kTolerance * loss);
  const double norm = static_cast<double>(golden.Floats("grad_norm")[0]);
  EXPECT_NEAR(seen.steps[0].grad_norm, norm, kTolerance * norm);
  EXPECT_LT(seen.steps[0].clip_scale, 0.9) << "clipping is to be active";
  EXPECT_EQ(seen.steps[0].ready_sum, layout.world_size());
  ExpectClose(golden, *catalog, "grads", seen.gradients);
  ExpectClose(golden, *catalog, "clipped", seen.gradients, seen.steps[0].clip_scale);
  const std::vector<int> kept = options.model.tied ? std::vector{3} : std::vector{1, 2, 3};
  EXPECT_EQ(golden.Steps(), kept);
  for (const int step : kept)
    ExpectClose(golden, *catalog, fmt::format("step{}", step), seen.parameters[step - 1]);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GoldenTest,
    ::testing::Values(Case{"untied", "dp=1"}, Case{"untied", "tp=2"}, Case{"untied", "pp=2"},
                      Case{"untied", "dp=2"}, Case{"untied", "dp=2,zero=1"},
                      Case{"untied", "dp=4,zero=1,zero_order=reverse-contiguous"},
                      Case{"untied", "tp=2,pp=2,dp=2"}, Case{"untied", "tp=2,pp=2,dp=2,zero=1"},
                      Case{"untied", "tp=3,pp=2,split=2+1"}, Case{"tied", "dp=1"},
                      Case{"tied", "tp=2"}, Case{"tied", "pp=3"},
                      Case{"tied", "tp=2,pp=2,dp=2,zero=1"}),
    [](const auto& test) {
      std::string name = std::string(test.param.variant) + "_" + test.param.spec;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

}  // namespace
}  // namespace dynatrain::trainer
