// Cases C17, C18 and C19 in jobs of real processes with a training loop of their own: what each rank
// holds after each switch is compared element by element with what it must be.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dynatrain/bridge/elastic_rank.h"
#include "dynatrain/bridge/fence.h"
#include "dynatrain/bridge/process_harness.h"

namespace dynatrain::bridge {
namespace {

using nlohmann::json;
using What = elastic::BoundaryResult::What;
using Parameters = std::vector<vps::Parameter>;

constexpr int64_t kStepsPerLayout = 3;  // at least
constexpr Duration kTimeout = std::chrono::seconds(30);

std::string FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(fd);
  return std::to_string(ntohs(address.sin_port));
}

// A loop around ElasticRank. Subclasses say what a step does and what must hold.
class Loop : public elastic::Host {
 public:
  Loop(const ChildArgs& child, std::string first, std::vector<std::string> switches)
      : child_(child), first_(std::move(first)), switches_(std::move(switches)) {}

  Status Run(Parameters parameters) {
    auto catalog = std::make_shared<vps::StateCatalog>();
    for (vps::Parameter& p : parameters) DT_RETURN_IF_ERROR(catalog->Add(std::move(p)));
    RankEnvironment environment;
    environment.rank = child_.rank;
    environment.num_ranks = child_.ranks;
    environment.store = {"127.0.0.1", static_cast<uint16_t>(std::stoi(child_.values.at(0)))};
    environment.serves_store = child_.rank == 0;
    environment.gloo.interface = "lo";
    ElasticRankOptions options{.layout = first_};
    options.switching.verify = engine::Verify::kFull;
    options.switching.fill = engine::Fill::kNan;
    options.on_report = [this](const elastic::SwitchReport& report) { CheckReport(report); };
    DT_ASSIGN_OR_RETURN(rank_, ElasticRank::Join(environment, catalog, this, options));
    if (rank_->active()) DT_RETURN_IF_ERROR(Begin());
    while (done_ < switches_.size()) {
      DT_RETURN_IF_ERROR(StepAndBoundary());
      DT_RETURN_IF_ERROR(AfterStep());
    }
    DT_RETURN_IF_ERROR(AtEnd());
    if (rank_->speaks()) DT_RETURN_IF_ERROR(rank_->End("all switches made"));
    rank_.reset();
    return bad_report_;
  }

  Status CheckLayout(const vps::Layout&) override { return {}; }
  Result<std::shared_ptr<void>> Prepare(const elastic::LayoutInstance&) override {
    return std::shared_ptr<void>(std::make_shared<int>());
  }
  std::string JobState() override { return json{{"step", step_}, {"entered", entered_}}.dump(); }

 protected:
  virtual Status Begin() = 0;
  virtual void Step() = 0;
  // After each committed switch, on the ranks that are active then.
  virtual Status Entered(const std::optional<std::string>& role_state) = 0;
  virtual Status AfterStep() { return {}; }
  virtual Status AtEnd() { return {}; }
  // One rank, on a background thread: a switch that was not made.
  virtual Status RolledBack(const std::string& reason) {
    return Internal("rolled back: {}", reason);
  }

  elastic::LayoutInstance& current() { return rank_->current(); }
  const vps::Layout& layout() { return current().map->layout(); }
  void CountAsDone() { ++done_; }

  const ChildArgs child_;
  std::unique_ptr<ElasticRank> rank_;
  int64_t step_ = 0;
  std::vector<int64_t> entered_ = {0};  // the last step before each layout, from the first one on
  const std::string first_;
  const std::vector<std::string> switches_;

 private:
  Status StepAndBoundary() {
    if (rank_->active()) {
      Step();
      ++step_;
      const bool due = asked_ <= done_ && step_ >= entered_.back() + kStepsPerLayout;
      if (rank_->speaks() && due) {
        asked_ = done_ + 1;
        DT_RETURN_IF_ERROR(rank_->RequestSwitch(switches_[done_], step_).status());
      }
    }
    DT_ASSIGN_OR_RETURN(const elastic::BoundaryResult boundary, rank_->AtStepBoundary(step_));
    if (boundary.what == What::kJobEnded) done_ = switches_.size();
    if (boundary.what != What::kCommitted) return {};
    ++done_;
    if (!rank_->active()) return {};  // may have no job state: perhaps it took no part
    const json state = json::parse(boundary.job_state);
    step_ = state.at("step").get<int64_t>();
    entered_ = state.at("entered").get<std::vector<int64_t>>();
    entered_.push_back(step_);
    return Entered(boundary.role_state);
  }

  void CheckReport(const elastic::SwitchReport& report) {
    const bool same = report.digest_before == report.digest_after && report.replica_check == 0;
    if (report.outcome != elastic::Outcome::kCommitted) {
      bad_report_ = RolledBack(report.reason);
    } else if (!same || report.digest_before == 0) {
      bad_report_ = Internal("{}", report.ToJson());
    }
  }

  size_t done_ = 0;   // switches made
  size_t asked_ = 0;  // of switches_, by anyone as far as this rank knows
  Status bad_report_;
};

int Exit(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

// Calls visit(logical row-major index, address) for every element of a shard.
template <class Visit>
void ForEachElement(elastic::LayoutInstance& instance, const vps::Shard& shard,
                    const Visit& visit) {
  const vps::Box whole = vps::Box::Whole(instance.map->catalog().shape_of(shard.tensor));
  auto* const data = reinterpret_cast<float*>(instance.state.bytes(shard.buffer).data());
  vps::Coords at = shard.box.lo();
  while (true) {
    int64_t offset = shard.offset;
    for (int axis = 0; axis < at.dims(); ++axis) {
      offset += (at[axis] - shard.box.lo()[axis]) * shard.strides[axis];
    }
    visit(vps::FlatIndex(whole, at), data + offset);
    int axis = at.dims() - 1;
    for (; axis >= 0; --axis) {
      if (++at[axis] < shard.box.hi()[axis]) break;
      at[axis] = shard.box.lo()[axis];
    }
    if (axis < 0) return;
  }
}

// A loop whose state is known: element i of tensor t starts as Start(t, i), and each step adds to it
// what Gain says of its tensor.
class CountingLoop : public Loop {
 public:
  using Loop::Loop;

 protected:
  // Per step; small whole numbers, so that sums are exact.
  virtual float Gain(const vps::StateCatalog& catalog, vps::TensorId tensor) = 0;
  // What this rank adds in the layout it is in; equal to Gain in a right program.
  virtual float GainHere(const vps::Shard& shard) {
    return Gain(current().map->catalog(), shard.tensor);
  }

  static float Start(vps::TensorId tensor, int64_t index) {
    return static_cast<float>(1000 * (tensor + 1) + index);
  }
  Status Begin() override {
    for (const vps::Shard& shard : current().map->ShardsOf(child_.rank)) {
      ForEachElement(current(), shard,
                     [&](int64_t i, float* value) { *value = Start(shard.tensor, i); });
    }
    return {};
  }
  void Step() override {
    for (const vps::Shard& shard : current().map->ShardsOf(child_.rank)) {
      const float gain = GainHere(shard);
      ForEachElement(current(), shard, [gain](int64_t, float* value) { *value += gain; });
    }
  }
  Status Entered(const std::optional<std::string>&) override {
    const vps::StateCatalog& catalog = current().map->catalog();
    Status status;
    for (const vps::Shard& shard : current().map->ShardsOf(child_.rank)) {
      const float gain = Gain(catalog, shard.tensor) * static_cast<float>(step_);
      ForEachElement(current(), shard, [&](int64_t i, const float* value) {
        if (*value == Start(shard.tensor, i) + gain || !status.ok()) return;
        status = DataLoss("rank {} in {} after step {}: element {} of {} is {}, not {}",
                          child_.rank, layout().ToString(), step_, i, catalog.NameOf(shard.tensor),
                          *value, Start(shard.tensor, i) + gain);
      });
    }
    return status;
  }
};

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
  return Exit(GroupsByStage(child, "pp=2,dp=2,zero=1", {"dp=2,zero=1", "pp=2", "dp=1,ranks=3"})
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
  return Exit(OtherOrder(child, "dp=2", {"tp=1,dp=1"}).Run(std::move(parameters)));
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
  return Exit(PresenceLoop(child, "dp=2,zero=1",
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
  return Exit(StreamsLoop(child, "tp=1,dp=2",
                          {"tp=2,dp=1", "tp=1,dp=2", "dp=4", "dp=2", "dp=2,ranks=3+2", "dp=4"})
                  .Run(TwoLayers()));
}

// ----

testing::AssertionResult RunJob(const std::string& body, int ranks) {
  return RunProcesses(
      {.body = body, .ranks = ranks, .values = {FreePort()}, .deadline = std::chrono::seconds(90)});
}

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
