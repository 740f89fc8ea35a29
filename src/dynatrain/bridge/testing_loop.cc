#include "dynatrain/bridge/testing_loop.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include <nlohmann/json.hpp>

#include "dynatrain/bridge/c10d_store.h"

namespace dynatrain::bridge {
namespace {

using nlohmann::json;
using What = elastic::BoundaryResult::What;

constexpr int64_t kStepsPerLayout = 3;  // at least
constexpr std::chrono::seconds kJobDeadline{90};

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

float Start(vps::TensorId tensor, int64_t index) {
  return static_cast<float>(1000 * (tensor + 1) + index);
}

}  // namespace

testing::AssertionResult RunJob(const std::string& body, int ranks) {
  const auto server = StoreServer::Start({"127.0.0.1", 0});
  if (!server.ok()) return testing::AssertionFailure() << server.status().ToString();
  return RunProcesses({.body = body,
                       .ranks = ranks,
                       .values = {std::to_string((*server)->address().port)},
                       .deadline = kJobDeadline});
}

int ExitCodeOf(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

Loop::Loop(const ChildArgs& child, std::string first, std::vector<std::string> switches)
    : child_(child), first_(std::move(first)), switches_(std::move(switches)) {}

Status Loop::Run(std::vector<vps::Parameter> parameters) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  for (vps::Parameter& p : parameters) DT_RETURN_IF_ERROR(catalog->Add(std::move(p)));
  RankEnvironment environment;
  environment.rank = child_.rank;
  environment.num_ranks = child_.ranks;
  environment.store = {"127.0.0.1", static_cast<uint16_t>(std::stoi(child_.values.at(0)))};
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

std::string Loop::JobState() { return json{{"step", step_}, {"entered", entered_}}.dump(); }

Status Loop::StepAndBoundary() {
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

void Loop::CheckReport(const elastic::SwitchReport& report) {
  const bool same = report.digest_before == report.digest_after && report.replica_check == 0;
  if (report.outcome != elastic::Outcome::kCommitted) {
    bad_report_ = RolledBack(report.reason);
  } else if (!same || report.digest_before == 0) {
    bad_report_ = Internal("{}", report.ToJson());
  }
}

Status CountingLoop::Begin() {
  for (const vps::Shard& shard : current().map->ShardsOf(child_.rank)) {
    ForEachElement(current(), shard,
                   [&](int64_t i, float* value) { *value = Start(shard.tensor, i); });
  }
  return {};
}

void CountingLoop::Step() {
  for (const vps::Shard& shard : current().map->ShardsOf(child_.rank)) {
    const float gain = GainHere(shard);
    ForEachElement(current(), shard, [gain](int64_t, float* value) { *value += gain; });
  }
}

Status CountingLoop::Entered(const std::optional<std::string>&) {
  const vps::StateCatalog& catalog = current().map->catalog();
  Status status;
  for (const vps::Shard& shard : current().map->ShardsOf(child_.rank)) {
    const float gain = Gain(catalog, shard.tensor) * static_cast<float>(step_);
    ForEachElement(current(), shard, [&](int64_t i, const float* value) {
      if (*value == Start(shard.tensor, i) + gain || !status.ok()) return;
      status = DataLoss("rank {} in {} after step {}: element {} of {} is {}, not {}", child_.rank,
                        layout().ToString(), step_, i, catalog.NameOf(shard.tensor), *value,
                        Start(shard.tensor, i) + gain);
    });
  }
  return status;
}

}  // namespace dynatrain::bridge
