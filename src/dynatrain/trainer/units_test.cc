// What of the trainer needs no process: optimizer, schedule, data, options, job state.
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/base/random.h"
#include "dynatrain/engine/testing_switch.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/trainer/data.h"
#include "dynatrain/trainer/init.h"
#include "dynatrain/trainer/job_state.h"
#include "dynatrain/trainer/kernels.h"
#include "dynatrain/trainer/optimizer.h"
#include "dynatrain/trainer/options.h"
#include "dynatrain/trainer/trainer_host.h"

namespace dynatrain::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> RandomFloats(Random* random, size_t count, double scale) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(scale * (random->Unit() - 0.5));
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(AdamWTest, GivesTheSameBitsHoweverTheElementsAreCut) {
  const size_t n = 1000;
  Random random(11);
  const std::vector<float> param = RandomFloats(&random, n, 1),
                           grad = RandomFloats(&random, n, 0.1),
                           avg = RandomFloats(&random, n, 0.1);
  std::vector<float> sq = RandomFloats(&random, n, 0.01);
  for (float& value : sq) value = std::abs(value);
  const AdamCoefficients c = MakeAdamCoefficients({}, 1e-2, 3, 0.37, true);

  struct State {
    std::vector<float> param, avg, sq;
  } whole{param, avg, sq};
  AdamW(whole.param.data(), grad.data(), whole.avg.data(), whole.sq.data(), n, c);
  for (int round = 0; round < 200; ++round) {
    // Every array at an offset of its own, cut at random places.
    const size_t o[4] = {
        static_cast<size_t>(random.Between(0, 15)), static_cast<size_t>(random.Between(0, 15)),
        static_cast<size_t>(random.Between(0, 15)), static_cast<size_t>(random.Between(0, 15))};
    std::vector<float> p(n + 16), g(n + 16), m(n + 16), v(n + 16);
    std::copy(param.begin(), param.end(), p.data() + o[0]);
    std::copy(grad.begin(), grad.end(), g.data() + o[1]);
    std::copy(avg.begin(), avg.end(), m.data() + o[2]);
    std::copy(sq.begin(), sq.end(), v.data() + o[3]);
    for (size_t at = 0; at < n;) {
      const size_t length = std::min(n - at, static_cast<size_t>(random.Between(1, 70)));
      AdamW(p.data() + o[0] + at, g.data() + o[1] + at, m.data() + o[2] + at, v.data() + o[3] + at,
            static_cast<int64_t>(length), c);
      at += length;
    }
    const auto part = [n](const std::vector<float>& a, size_t from) {
      return std::vector<float>(a.begin() + static_cast<int64_t>(from),
                                a.begin() + static_cast<int64_t>(from + n));
    };
    ASSERT_TRUE(SameBits(part(p, o[0]), whole.param) && SameBits(part(m, o[2]), whole.avg) &&
                SameBits(part(v, o[3]), whole.sq))
        << "seed 11, round " << round;
  }
}

TEST(AdamWTest, TakesTheStepOfItsDefinition) {
  float p = 0.5f, m = 0.1f, v = 0.02f;
  const float g = -0.3f;
  const AdamOptions options{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
  AdamW(&p, &g, &m, &v, 1, MakeAdamCoefficients(options, 0.01, 4, 0.5, true));
  const double em = 0.9 * 0.1 + 0.1 * -0.15, ev = 0.99 * 0.02 + 0.01 * 0.0225;
  const double ep = 0.5 * (1 - 0.001) - 0.01 * (em / (1 - std::pow(0.9, 4))) /
                                            (std::sqrt(ev / (1 - std::pow(0.99, 4))) + 1e-8);
  EXPECT_NEAR(m, em, 1e-7);
  EXPECT_NEAR(v, ev, 1e-8);
  EXPECT_NEAR(p, ep, 1e-7);
}

TEST(SumOfSquaresTest, DoesNotDependOnAlignment) {
  Random random(12);
  const std::vector<float> x = RandomFloats(&random, 300, 1);
  for (const size_t n : {0, 1, 3, 4, 7, 64, 255, 300}) {
    const double expected = SumOfSquares(x.data(), static_cast<int64_t>(n));
    for (size_t offset = 1; offset < 9; ++offset) {
      std::vector<float> moved(n + offset);
      std::copy(x.begin(), x.begin() + static_cast<int64_t>(n),
                moved.begin() + static_cast<int64_t>(offset));
      EXPECT_EQ(SumOfSquares(moved.data() + offset, static_cast<int64_t>(n)), expected);
    }
  }
}

TEST(ScheduleTest, WarmsUpThenFallsAlongACosine) {
  const Schedule s{.lr = 1.0, .min_lr = 0.1, .warmup = 10, .steps = 110};
  EXPECT_DOUBLE_EQ(LearningRate(s, 1), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(s, 9), 0.9);
  EXPECT_DOUBLE_EQ(LearningRate(s, 10), 1.0);
  EXPECT_NEAR(LearningRate(s, 60), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(s, 110), 0.1, 1e-12);
  EXPECT_NEAR(LearningRate(s, 1000), 0.1, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate({.lr = 0.5, .min_lr = 0.5, .warmup = 0, .steps = 1}, 1), 0.5);
}

TEST(ClipTest, ScalesOnlyNormsAboveTheLimit) {
  EXPECT_DOUBLE_EQ(ClipScale(0.5, 1.0), 1.0);
  EXPECT_NEAR(ClipScale(4.0, 1.0), 0.25, 1e-6);
  EXPECT_DOUBLE_EQ(ClipScale(4.0, 0.0), 1.0);
}

// Case C17: a hyper-parameter belongs to the parameter, whatever the order in which a stage lists
// its parameters.
TEST(ParameterRangesTest, DecayFollowsTheParameterInEveryOrder) {
  const auto catalog =
      *models::MakeCatalog(*models::LoadModel("micro-llama"), vps::Fp32AdamKinds());
  for (const char* spec :
       {"dp=2,zero=1", "dp=2,zero=1,zero_order=reverse-contiguous", "tp=2,pp=2,dp=1",
        "tp=2,pp=3,dp=2,zero=1,zero_order=reverse-bucketed:1000-start:16"}) {
    const auto map = *vps::LayoutShardMap::Make(catalog, *vps::ParseLayout(spec));
    std::vector<int64_t> told(catalog->parameters().size());
    for (int32_t stage = 0; stage < map->layout().pp; ++stage) {
      for (const vps::Bucket& bucket : map->BucketsOf(stage, 0)) {
        const int64_t half = bucket.elems / 2;
        for (const auto& [begin, end] :
             {std::pair{int64_t{0}, half}, std::pair{half, bucket.elems}}) {
          for (const ParameterRange& r : RangesOf(*catalog, bucket, begin, end)) {
            const vps::Parameter& p = catalog->parameters()[static_cast<size_t>(r.parameter)];
            EXPECT_EQ(r.decay, !p.name.ends_with("norm.weight")) << p.name << " in " << spec;
            EXPECT_TRUE(r.updated && begin <= r.begin && r.begin < r.end && r.end <= end) << p.name;
            told[static_cast<size_t>(r.parameter)] += r.end - r.begin;
          }
        }
      }
    }
    for (size_t i = 0; i < told.size(); ++i) EXPECT_GT(told[i], 0) << catalog->parameters()[i].name;
  }
}

// Case C17: stage 0 lists (decay, no decay), stage 1 (no decay, decay); in one stage, two or cut
// over dp, both parameters of a layer keep what is theirs.
TEST(ParameterRangesTest, StagesThatListTheirGroupsInAnotherOrder) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  for (const char* name : {"0.w", "0.norm", "1.norm", "1.w"}) {
    const bool decay = std::string_view(name).ends_with(".w");
    ASSERT_TRUE(catalog
                    ->Add({.name = name,
                           .shape = {decay ? 7 : 3},
                           .homes = {vps::Home::Layer(name[0] - '0')},
                           .kinds = vps::Fp32AdamKinds(),
                           .weight_decay = decay})
                    .ok());
  }
  for (const char* spec : {"pp=2", "pp=1", "pp=2,dp=3,zero=1", "dp=2,zero=1"}) {
    const auto map = *vps::LayoutShardMap::Make(catalog, *vps::ParseLayout(spec));
    std::vector<int64_t> decayed(4), kept(4);
    for (int32_t stage = 0; stage < map->layout().pp; ++stage) {
      for (const vps::Bucket& bucket : map->BucketsOf(stage, 0)) {
        for (const ParameterRange& r : RangesOf(*catalog, bucket, 0, bucket.elems))
          (r.decay ? decayed : kept)[static_cast<size_t>(r.parameter)] += r.end - r.begin;
      }
    }
    EXPECT_THAT(decayed, ElementsAre(7, 0, 0, 7)) << spec;
    EXPECT_THAT(kept, ElementsAre(0, 3, 3, 0)) << spec;
  }
}

// Case C03: 57 elements in slices that are padded to multiples of 2 x dp. State goes from DP2 over
// DP4 and DP3 back to DP2 by executed programs; then every rank steps the elements that are its own.
// The bits are those of one step over all elements that never moved.
class SlicedOptimizerTest : public ::testing::Test {
 protected:
  static constexpr size_t kElements = 57;
  using Flat = std::vector<float>;

  SlicedOptimizerTest() {
    for (const auto& [name, elems, decay] :
         {std::tuple{"a", 20, true}, {"b", 30, false}, {"c", 7, true}}) {
      const Status added = catalog_->Add({.name = name,
                                          .shape = {elems},
                                          .homes = {vps::Home::Layer(0)},
                                          .kinds = vps::Fp32AdamKinds(),
                                          .weight_decay = decay});
      EXPECT_TRUE(added.ok()) << added.ToString();
    }
  }

  std::shared_ptr<const vps::LayoutShardMap> MapOf(int dp) const {
    return *vps::LayoutShardMap::Make(
        catalog_,
        *vps::ParseLayout(fmt::format("dp={},zero=1,zero_order=forward-contiguous-endx:2", dp)));
  }
  static Flat Numbers(float begin) {
    Flat values(kElements);
    for (size_t i = 0; i < kElements; ++i) values[i] = begin + static_cast<float>(i);
    return values;
  }
  static Flat Gradient() {
    Random random(3);
    return RandomFloats(&random, kElements, 0.5);
  }
  // [begin, begin + count) of `values`, padded with zeros, as bytes.
  static std::vector<std::byte> Slice(const Flat& values, size_t begin, size_t count) {
    Flat slice(count);
    for (size_t i = 0; i < count && begin + i < kElements; ++i) slice[i] = values[begin + i];
    std::vector<std::byte> bytes(count * sizeof(float));
    std::memcpy(bytes.data(), slice.data(), bytes.size());
    return bytes;
  }
  static Flat FloatsOf(const std::vector<std::byte>& bytes) {
    Flat values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  std::shared_ptr<vps::StateCatalog> catalog_ = std::make_shared<vps::StateCatalog>();
};

TEST_F(SlicedOptimizerTest, StepsAfterSwitchesAsIfThereHadBeenNone) {
  const Flat grad = Gradient();
  const AdamOptions options;
  const auto step = [&](float* p, const float* g, float* m, float* v, const ParameterRange& r) {
    AdamW(p, g, m, v, r.end - r.begin, MakeAdamCoefficients(options, 1e-2, 6, 0.37, r.decay));
  };
  Flat param = Numbers(1000), avg = Numbers(1000), sq = Numbers(1000);
  vps::testing::State state;
  for (RankId rank = 0; rank < 2; ++rank) {
    const auto begin = static_cast<size_t>(rank) * 30;
    state[rank] = {Slice(param, 0, 60), Slice(avg, begin, 30), Slice(sq, begin, 30)};
  }
  auto map = MapOf(2);
  for (const int dp : {4, 3, 2}) {
    const auto next = MapOf(dp);
    const auto hop = engine::testing::RunSwitch(*map, state, *next, {});
    ASSERT_TRUE(hop.ok()) << hop.ToString();
    state = hop.new_state;
    map = next;
  }
  const vps::Bucket bucket = map->BucketsOf(0, 0).at(0);
  for (const ParameterRange& r : RangesOf(*catalog_, bucket, 0, bucket.elems))
    step(&param[static_cast<size_t>(r.begin)], &grad[static_cast<size_t>(r.begin)],
         &avg[static_cast<size_t>(r.begin)], &sq[static_cast<size_t>(r.begin)], r);
  for (RankId rank = 0; rank < 2; ++rank) {
    const int64_t begin = rank * 30;
    Flat p = FloatsOf(state.at(rank)[0]), m = FloatsOf(state.at(rank)[1]),
         v = FloatsOf(state.at(rank)[2]);
    for (const ParameterRange& r : RangesOf(*catalog_, bucket, begin, begin + 30)) {
      const auto at = static_cast<size_t>(r.begin), local = static_cast<size_t>(r.begin - begin);
      step(&p[at], &grad[at], &m[local], &v[local], r);
    }
    const auto first = static_cast<size_t>(begin);
    for (size_t i = first; i < std::min<size_t>(first + 30, kElements); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(p[i]), std::bit_cast<uint32_t>(param[i])) << i;
      EXPECT_NE(p[i], 1000.0f + static_cast<float>(i)) << "it stepped";
      EXPECT_EQ(std::bit_cast<uint32_t>(m[i - first]), std::bit_cast<uint32_t>(avg[i])) << i;
      EXPECT_EQ(std::bit_cast<uint32_t>(v[i - first]), std::bit_cast<uint32_t>(sq[i])) << i;
    }
  }
}

TEST(KernelsTest, RmsNormGradientIsTheDerivative) {
  const int64_t rows = 3, width = 13;
  Random random(13);
  const std::vector<float> x = RandomFloats(&random, 39, 2), w = RandomFloats(&random, 13, 2),
                           dy = RandomFloats(&random, 39, 2);
  const auto loss = [&](const std::vector<float>& at) {
    double sum = 0;
    for (int64_t t = 0; t < rows; ++t) {
      double squares = 0;
      for (int64_t c = 0; c < width; ++c)
        squares += std::pow(at[static_cast<size_t>(t * width + c)], 2);
      for (int64_t c = 0; c < width; ++c) {
        const auto i = static_cast<size_t>(t * width + c);
        sum += dy[i] * at[i] * w[static_cast<size_t>(c)] / std::sqrt(squares / width + 1e-5);
      }
    }
    return sum;
  };
  std::vector<float> y(39), r(3), dx(39), dw(13, 1.0f);
  RmsNormForward(x.data(), w.data(), 1e-5f, rows, width, y.data(), r.data());
  RmsNormBackward(dy.data(), x.data(), w.data(), r.data(), rows, width, dx.data(), dw.data());
  for (size_t i = 0; i < 39; ++i) {
    std::vector<float> up = x, down = x;
    up[i] += 1e-3f;
    down[i] -= 1e-3f;
    EXPECT_NEAR(
        dx[i],
        (loss(up) - loss(down)) / (static_cast<double>(up[i]) - static_cast<double>(down[i])),
        2e-3);
  }
}

// A file in the temporary folder, removed with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content)
      : path_(::testing::TempDir() + "dynatrain-units-" + std::to_string(::getpid()) + ".txt") {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(PermuteTest, IsOneToOneForEverySize) {
  for (int64_t n = 1; n < 300; ++n) {
    std::set<int64_t> images;
    for (int64_t i = 0; i < n; ++i) images.insert(Permute(i, n, 99));
    ASSERT_EQ(static_cast<int64_t>(images.size()), n);
    ASSERT_TRUE(*images.begin() == 0 && *images.rbegin() == n - 1);
  }
}

// Case C20 as far as it concerns the order; what trainers read of it: trainer_test.cc.
TEST(TextDataTest, GoesThroughEverySampleOncePerEpochInOneGlobalOrder) {
  const TemporaryFile file(std::string(24 * 5 + 1, 'a'));
  const auto data = *TextData::Open(file.path(), 5, 4, 256);
  ASSERT_EQ(data->num_samples(), 24);
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 24; ++i) order.push_back(data->Order(epoch * 24 + i, 5));
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 24u);
    epochs.push_back(order);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(data->Order(0, 5) + 24 * data->Order(1, 5), data->Order(0, 6) + 24 * data->Order(1, 6));
}

TEST(TextDataTest, AFileCutShortIsAnErrorThatNamesIt) {
  const TemporaryFile file(std::string(24 * 5 + 1, 'a'));
  const auto data = *TextData::Open(file.path(), 5, 4, 256);
  ASSERT_EQ(::truncate(file.path().c_str(), 53), 0);
  EXPECT_TRUE(data->Sample(9).ok());
  for (const int64_t sample : {10, 23}) {
    const Status status = data->Sample(sample).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(file.path()), HasSubstr("had 121 bytes")));
  }
}

TEST(TextDataTest, ShowsTheBytesOfASample) {
  const TemporaryFile file("abcdefghijk");
  const auto data = *TextData::Open(file.path(), 3, 2, 256);
  EXPECT_EQ(data->num_samples(), 3);
  EXPECT_THAT(*data->Sample(1), ElementsAre('d', 'e', 'f', 'g'));
}

TEST(TextDataTest, RefusesFilesThatCannotTrain) {
  const Status missing = TextData::Open("/nowhere/text", 4, 2, 256).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("/nowhere/text"));
  EXPECT_THAT(TextData::Open("/tmp", 4, 2, 256).status().message(), HasSubstr("no regular file"));
  const TemporaryFile file("abcdefgh");
  EXPECT_THAT(TextData::Open(file.path(), 4, 2, 256).status().message(),
              AllOf(HasSubstr(file.path()), HasSubstr("has 8 bytes"), HasSubstr("at least 9")));
  EXPECT_TRUE(TextData::Open(file.path(), 3, 2, 256).ok());
  EXPECT_THAT(TextData::Open(file.path(), 3, 2, 100).status().message(),
              AllOf(HasSubstr("byte 100 at offset 3"), HasSubstr("vocabulary of 100")));
}

TEST(NormalAtTest, HasMeanZeroAndVarianceOne) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < 20000; ++i) {
    const double x = NormalAt(3, "w", i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 20000, 0, 0.03);
  EXPECT_NEAR(squares / 20000, 1, 0.03);
  EXPECT_NE(NormalAt(3, "w", 0), NormalAt(4, "w", 0));
  EXPECT_NE(NormalAt(3, "w", 0), NormalAt(3, "v", 0));
}

TrainerOptions MicroOptions() {
  TrainerOptions o;
  o.model = *models::LoadModel("micro-llama");
  o.seq = 16;
  return o;
}

// Case C21: micro-batches are counted by dp positions, and the global batch never changes by
// itself.
TEST(CheckLayoutTest, RefusesDegreesThatDoNotDivideTheGlobalBatch) {
  TrainerOptions o = MicroOptions();
  o.global_batch = 12;
  o.micro_batch = 2;
  EXPECT_EQ(o.micro_batches(), 6) << "3 accumulations at DP2, 2 at DP3, 1 at DP6";
  for (const char* spec : {"dp=1", "dp=2", "dp=3", "dp=6", "tp=2,dp=3", "tp=2,pp=3,dp=2"}) {
    EXPECT_TRUE(CheckLayout(o, *vps::ParseLayout(spec)).ok()) << spec;
  }
  for (const char* spec : {"dp=4", "dp=5", "tp=2,dp=4"}) {
    const Status status = CheckLayout(o, *vps::ParseLayout(spec));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("global batch 12"),
                                        HasSubstr("micro-batches of 2"), HasSubstr("1, 2, 3, 6")));
  }
  EXPECT_THAT(CheckLayout(o, *vps::ParseLayout("dp=4")).message(),
              HasSubstr("1.5 for each dp position"));
  EXPECT_THAT(CheckLayout(o, *vps::ParseLayout("dp=5")).message(),
              HasSubstr("1.2 for each dp position"));
  o.micro_batch = 3;  // an explicit new micro-batch makes DP4 fit; the global batch stays
  EXPECT_TRUE(CheckLayout(o, *vps::ParseLayout("dp=4")).ok());
  EXPECT_EQ(o.global_batch, 12);
  EXPECT_FALSE(CheckLayout(o, *vps::ParseLayout("tp=3")).ok());  // 2 KV heads
  EXPECT_FALSE(CheckLayout(o, *vps::ParseLayout("pp=4")).ok());  // 3 layers
}

TEST(CheckOptionsTest, RefusesWhatTheTrainerDoesNotHave) {
  EXPECT_TRUE(CheckOptions(MicroOptions()).ok());
  TrainerOptions o = MicroOptions();
  o.seq = 129;
  EXPECT_THAT(CheckOptions(o).message(), HasSubstr("seq 129"));
  o = MicroOptions();
  o.global_batch = 7;
  o.micro_batch = 2;
  EXPECT_THAT(CheckOptions(o).message(), HasSubstr("7 is no multiple of micro-batch 2"));
  o = MicroOptions();
  o.model = *models::LoadModel("micro-gpt");
  EXPECT_THAT(CheckOptions(o).message(), HasSubstr("LLaMA-style"));
  o = MicroOptions();
  o.model.rope_scaling = "llama3";
  EXPECT_THAT(CheckOptions(o).message(), HasSubstr("rope_scaling"));
}

TEST(JobStateTest, SurvivesARoundTrip) {
  const JobState state{.step = 17, .samples = 204, .seed = 18446744073709551615ULL};
  EXPECT_EQ(*JobState::FromBytes(state.ToBytes()), state);
  for (const char* bad : {"", "step=1", "step=1 samples=2 seed=x", "step=-1 samples=2 seed=3",
                          "step=1 samples=2 seed=3 "}) {
    EXPECT_EQ(JobState::FromBytes(bad).status().code(), StatusCode::kDataLoss) << bad;
  }
}

// Case C30: a newcomer goes on from the holders' step, and refuses a data position that is not its
// own job's.
TEST(TrainerHostTest, CarriesTheJobStateToANewcomer) {
  const TemporaryFile file(std::string(1000, 'x'));
  TrainerOptions options = MicroOptions();
  options.data_file = file.path();
  const auto trained = *TrainerHost::Make(options);
  trained->Finished(17);
  const auto newcomer = *TrainerHost::Make(options);
  EXPECT_TRUE(newcomer->Restore(trained->JobState()).ok());
  EXPECT_EQ(newcomer->state(), (JobState{.step = 17, .samples = 17 * 12, .seed = options.seed}));
  options.seed = 2;
  EXPECT_THAT((*TrainerHost::Make(options))->Restore(trained->JobState()).message(),
              HasSubstr("seed 1"));
  options.seed = 1;
  options.global_batch = 6;
  EXPECT_THAT((*TrainerHost::Make(options))->Restore(trained->JobState()).message(),
              HasSubstr("204 samples"));
  options.data_file = "/nowhere/text";
  EXPECT_FALSE(TrainerHost::Make(options).ok());
}

}  // namespace
}  // namespace dynatrain::trainer
