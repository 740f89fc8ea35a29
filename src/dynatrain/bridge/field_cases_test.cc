// Cases C17, C18 and C19 in jobs of real processes with a training loop of their own: what each rank
// holds after each switch is compared element by element with what it must be.
#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dynatrain/bridge/testing_loop.h"

namespace dynatrain::bridge {
namespace {

using nlohmann::json;
using Parameters = std::vector<vps::Parameter>;

constexpr Duration kTimeout = std::chrono::seconds(30);

// ---- C17

const std::vector<vps::KindSpec> kParamAlone = {{vps::Kind::kParam, vps::DType::kF32}};

Parameters TwoLayers() {
  Parameters all;
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (const bool decay : {true, false}) {
      vps::Parameter p{.name = fmt::format("layers.{}.{}", layer, decay ? "weight" : "norm"),
                       .shape = {5, 3},
                       .homes = {vps::Home::Layer(layer)},
                       .kinds = vps::Fp32AdamKinds()};
      p.weight_decay = decay;
      all.push_back(std::move(p));
    }
  }
  return all;
}

// Each stage lists its optimizer's groups and their tensors in another order.
class GroupsByStage : public CountingLoop {
 public:
  using CountingLoop::CountingLoop;

  Result<std::shared_ptr<void>> Prepare(const elastic::LayoutInstance& instance) override {
    auto groups = std::make_shared<Groups>();
    std::vector<vps::Shard> shards = instance.map->ShardsOf(instance.rank);
    const int32_t stage = instance.map->layout().RoleOfRank(instance.rank)->pp;
    if (stage == 1) std::ranges::reverse(shards);
    for (const vps::Shard& shard : shards) {
      const bool decay = instance.map->catalog().parameter_of(shard.tensor).weight_decay;
      const auto of_decay = [&](const Group& group) { return group.decay == decay; };
      auto group = std::ranges::find_if(*groups, of_decay);
      if (group == groups->end()) group = groups->insert(group, {decay, decay ? 2.0f : 1.0f, {}});
      group->tensors.insert(shard.tensor);
    }
    return std::shared_ptr<void>(std::move(groups));
  }

 protected:
  struct Group {
    bool decay;
    float rate;
    std::set<vps::TensorId> tensors;
  };
  using Groups = std::vector<Group>;

  float Gain(const vps::StateCatalog& catalog, vps::TensorId tensor) override {
    return catalog.parameter_of(tensor).name.ends_with("weight") ? 2 : 1;
  }
  float GainHere(const vps::Shard& shard) override {
    for (const Group& group : *static_cast<Groups*>(current().host.get())) {
      if (group.tensors.contains(shard.tensor)) return group.rate;
    }
    return 0;
  }
};

int C17Groups(const ChildArgs& child) {
  return ExitCodeOf(
      GroupsByStage(child, "pp=2,dp=2,zero=1", {"dp=2,zero=1", "pp=2", "dp=1,ranks=3"})
          .Run(TwoLayers()));
}

// Registered in another order on one rank: refused, and training goes on.
class OtherOrder : public CountingLoop {
 public:
  using CountingLoop::CountingLoop;

 protected:
  float Gain(const vps::StateCatalog&, vps::TensorId) override { return 1; }
  Status RolledBack(const std::string& reason) override {
    refused_ = true;
    if (reason.find("ranks 0 and 1 registered different state") != std::string::npos) return {};
    return Internal("rolled back for another reason: {}", reason);
  }
  Status Entered(const std::optional<std::string>&) override {
    return Internal("committed with different catalogs");
  }
  // Some steps after the refusal all ranks end at the same one, which the first rank sets.
  Status AfterStep() override {
    if (child_.rank == 0 && refused_ && !told_) {
      told_ = true;
      DT_RETURN_IF_ERROR(rank_->store().Set("last step", std::to_string(step_ + 5)));
    }
    DT_ASSIGN_OR_RETURN(const auto last, rank_->store().TryGet("last step"));
    if (!last || step_ < std::stoll(*last)) return {};
    CountAsDone();
    return CountingLoop::Entered({});
  }

 private:
  std::atomic<bool> refused_ = false;
  bool told_ = false;
};

int C17Order(const ChildArgs& child) {
  Parameters parameters = TwoLayers();
  if (child.rank == 1) std::swap(parameters[0], parameters[1]);
  return ExitCodeOf(OtherOrder(child, "dp=2", {"tp=1,dp=1"}).Run(std::move(parameters)));
}

// ---- C18

// p0: trained. p1: trainable, but it never had a gradient. p2: frozen, with the state it had
// before. p3: frozen, without.
Parameters Presence() {
  const auto parameter = [](const char* name, bool trainable, bool state) {
    vps::Parameter p{.name = name,
                     .shape = {7, 3},
                     .homes = {vps::Home::Layer(0)},
                     .kinds = state ? vps::Fp32AdamKinds() : kParamAlone};
    p.trainable = trainable;
    return p;
  };
  return {parameter("p0", true, true), parameter("p1", true, false), parameter("p2", false, true),
          parameter("p3", false, false)};
}

class PresenceLoop : public CountingLoop {
 public:
  using CountingLoop::CountingLoop;

 protected:
  float Gain(const vps::StateCatalog& catalog, vps::TensorId tensor) override {
    return catalog.parameter_of(tensor).name == "p0" ? 1 : 0;
  }
  Status Entered(const std::optional<std::string>& role_state) override {
    DT_RETURN_IF_ERROR(CountingLoop::Entered(role_state));
    std::map<std::string, int64_t> held;
    for (const vps::Shard& shard : current().map->ShardsOf(child_.rank)) {
      held[current().map->catalog().NameOf(shard.tensor)] += shard.box.elems();
    }
    return rank_->store().Set(Key(child_.rank), json(held).dump());
  }
  // The elements that all ranks of the last layout hold together.
  Status AtEnd() override {
    if (!rank_->active() || !rank_->speaks()) return {};
    std::map<std::string, int64_t> sum;
    for (const RankId rank : layout().Ranks()) {
      DT_ASSIGN_OR_RETURN(const std::string text, rank_->store().Wait(Key(rank), kTimeout));
      for (const auto& [name, elems] : json::parse(text).get<std::map<std::string, int64_t>>()) {
        sum[name] += elems;
      }
    }
    const int64_t dp = layout().dp, all = 21;
    std::map<std::string, int64_t> expected;
    for (const char* name : {"p0", "p1", "p2", "p3"}) {
      expected[std::string(name) + "/param"] = dp * all;
    }
    for (const char* name : {"p0", "p2"}) {  // cut over dp
      expected[std::string(name) + "/exp_avg"] = expected[std::string(name) + "/exp_avg_sq"] = all;
    }
    if (sum == expected) return {};
    return Internal("held: {}, not {}", json(sum).dump(), json(expected).dump());
  }

 private:
  std::string Key(RankId rank) { return fmt::format("held/{}/{}", layout().ToString(), rank); }
};

int C18(const ChildArgs& child) {
  return ExitCodeOf(PresenceLoop(child, "dp=2,zero=1",
                                 {"dp=3,zero=1", "tp=1,dp=2,zero=1,ranks=2+0",
                                  "dp=3,zero=1,zero_order=reverse-contiguous"})
                        .Run(Presence()));
}

// ---- C19

using Engine = std::mt19937_64;
constexpr uint64_t kJobSeed = 20;
const std::vector<std::string> kStreams = {"default", "tensor-parallel", "expert-parallel"};

// Equal over tp for the default stream, as dropout of replicated activations needs.
uint64_t SeedOf(const std::string& stream, vps::Role role, int64_t step) {
  if (stream == "default") role.tp = 0;
  return elastic::RoleSeed(kJobSeed, stream, role, step);
}

// So many numbers a step: states tell roles apart that differ in nothing else.
int64_t DrawsPerStep(const std::string& stream, const vps::Role& role) {
  return stream == "default" ? 2 + role.dp : 1 + role.tp + 3 * role.dp;
}

std::string ToText(const Engine& engine) {
  std::ostringstream text;
  text << engine;
  return text.str();
}

class StreamsLoop : public Loop {
 public:
  using Loop::Loop;
  bool has_role_state() const override { return true; }
  std::string RoleState() override {
    json state;
    for (const auto& [name, engine] : streams_) state[name] = ToText(engine);
    return state.dump();
  }

 protected:
  Status Begin() override {
    Seed();
    return {};
  }
  void Step() override {
    for (auto& [name, engine] : streams_) {
      engine.discard(static_cast<unsigned long long>(DrawsPerStep(name, role())));
    }
  }
  Status Entered(const std::optional<std::string>& role_state) override {
    streams_.clear();
    if (role_state) {
      const json state = json::parse(*role_state);
      for (const auto& [name, text] : state.items()) {
        std::istringstream(text.get<std::string>()) >> streams_[name];
      }
    } else {
      Seed();
    }
    return Check();
  }

 private:
  vps::Role role() { return *layout().RoleOfRank(child_.rank); }
  void Seed() {
    for (const std::string& name : kStreams) streams_[name] = Engine(SeedOf(name, role(), step_));
  }
  // The state that each stream must have, from the history of layouts alone: it began with the
  // layout since which its role has been there.
  Status Check() {
    std::vector<std::string> specs = {first_};
    specs.insert(specs.end(), switches_.begin(), switches_.end());
    size_t began = entered_.size() - 1;
    while (began > 0 && Has(specs[began - 1])) --began;
    const int64_t steps = step_ - entered_[began];
    if (streams_.size() != kStreams.size()) return Internal("{} streams", streams_.size());
    for (const std::string& name : kStreams) {
      Engine expected(SeedOf(name, role(), entered_[began]));
      for (int64_t draw = 0; draw < steps * DrawsPerStep(name, role()); ++draw) expected();
      if (streams_[name] == expected) continue;
      return DataLoss("rank {} in {} after step {}: stream {} is not where {} steps from {} lead",
                      child_.rank, layout().ToString(), step_, name, steps, entered_[began]);
    }
    return {};
  }
  bool Has(const std::string& spec) {
    const auto other = vps::ParseLayout(spec, child_.ranks);
    return other.ok() && role().tp < other->tp && role().dp < other->dp && role().pp < other->pp;
  }

  std::map<std::string, Engine> streams_;
};

int C19(const ChildArgs& child) {
  return ExitCodeOf(
      StreamsLoop(child, "tp=1,dp=2",
                  {"tp=2,dp=1", "tp=1,dp=2", "dp=4", "dp=2", "dp=2,ranks=3+2", "dp=4"})
          .Run(TwoLayers()));
}

// ----

TEST(FieldCases, C17GroupsOfAnotherOrderPerStageGoToTheirParameters) {
  EXPECT_TRUE(RunJob("C17Groups", 4));
}
TEST(FieldCases, C17AnotherOrderOfRegistrationIsRefusedByName) {
  EXPECT_TRUE(RunJob("C17Order", 2));
}
TEST(FieldCases, C18StateIsPresentPerParameter) { EXPECT_TRUE(RunJob("C18", 3)); }
TEST(FieldCases, C19RandomStreamsFollowTheirRole) { EXPECT_TRUE(RunJob("C19", 4)); }

TEST(FieldCases, C19SeedsDifferWhereTheyMust) {
  std::set<uint64_t> seeds;
  size_t count = 0;
  for (const std::string& stream : kStreams) {
    for (const int64_t step : {0, 1, 7, 4096}) {
      for (int32_t position = 0; position < 96; ++position) {
        const vps::Role role{.tp = position % 4, .dp = position / 4 % 8, .pp = position / 32};
        seeds.insert(SeedOf(stream, role, step));
        count += stream != "default" || role.tp == 0 ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(seeds.size(), count);
}

}  // namespace
}  // namespace dynatrain::bridge

int main(int argc, char** argv) {
  using namespace dynatrain::bridge;
  return HarnessMain(
      argc, argv, {{"C17Groups", C17Groups}, {"C17Order", C17Order}, {"C18", C18}, {"C19", C19}});
}
