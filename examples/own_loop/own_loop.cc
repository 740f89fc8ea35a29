// A training loop that is not DynaTrain's, switched live. One process per rank, started by torchrun,
// srun or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT:
//
//   own_loop TEXT STEPS LAYOUT [STEP:LAYOUT]...
//   own_loop book.txt 60 tp=2 20:dp=2 40:dp=1
//
// What it took to make the loop elastic stands between the lines of dashes.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>

#include "dynatrain/bridge/elastic_rank.h"
#include "dynatrain/bridge/tensor_state.h"
#include "model.h"

namespace {

using dynatrain::InvalidArgument;
using dynatrain::Result;
using dynatrain::Status;
namespace bridge = dynatrain::bridge;
namespace elastic = dynatrain::elastic;
namespace vps = dynatrain::vps;
using What = elastic::BoundaryResult::What;

// ---- DynaTrain: what exists, and which axis of it tensor parallelism cuts
std::vector<vps::Parameter> Parameters() {
  const std::vector<vps::Home> home = {vps::Home::Layer(0)};
  const std::vector<vps::KindSpec> adam = vps::Fp32AdamKinds();
  return {
      {"embedding", {kBytes, kWidth}, vps::Split::None(), home, adam},
      {"hidden", {kHidden, kContext * kWidth}, vps::Split::Balanced(0), home, adam},
      {"hidden_bias", {kHidden}, vps::Split::Balanced(0), home, adam},
      {"out", {kBytes, kHidden}, vps::Split::Balanced(1), home, adam},
      {"out_bias", {kBytes}, vps::Split::None(), home, adam},
  };
}

struct Host : elastic::Host {
  int64_t step = 0;
  std::string JobState() override { return std::to_string(step); }
  Status CheckLayout(const vps::Layout& layout) override {
    if (layout.pp == 1 && layout.zero == 0 && kBatch % layout.dp == 0) return {};
    return InvalidArgument("{}: there is tp, and dp that divides {}", layout.ToString(), kBatch);
  }
  // In the background: weights and Adam's moments as views of the new layout's memory.
  Result<std::shared_ptr<void>> Prepare(const elastic::LayoutInstance& instance) override {
    DT_ASSIGN_OR_RETURN(const auto w, bridge::LocalTensors(instance, vps::Kind::kParam));
    DT_ASSIGN_OR_RETURN(const auto m, bridge::LocalTensors(instance, vps::Kind::kExpAvg));
    DT_ASSIGN_OR_RETURN(const auto v, bridge::LocalTensors(instance, vps::Kind::kExpAvgSq));
    return std::shared_ptr<void>(std::make_shared<Trainer>(
        w, m, v, bridge::BackendOf(instance, "tp"), bridge::BackendOf(instance, "dp")));
  }
};
// ---- end

// "20:dp=2" -> {20, "dp=2"}
std::map<int64_t, std::string> Requests(const std::vector<std::string>& arguments) {
  std::map<int64_t, std::string> requests;
  for (const std::string& argument : arguments) {
    const size_t colon = argument.find(':');
    requests[std::stoll(argument.substr(0, colon))] = argument.substr(colon + 1);
  }
  return requests;
}

Status Run(const std::string& text, int64_t steps, const std::string& layout,
           const std::map<int64_t, std::string>& requests) {
  // ---- DynaTrain: join; and after each step, the boundary at which a prepared switch is made
  Host host;
  bridge::ElasticRankOptions options{.layout = layout};
  options.switching.verify = dynatrain::engine::Verify::kFull;
  options.on_report = [](const auto& report) { std::printf("%s\n", report.ToJson().c_str()); };
  DT_ASSIGN_OR_RETURN(const auto rank, bridge::ElasticRank::Join(Parameters(), &host, options));
  const auto trainer = [&] { return static_cast<Trainer*>(rank->current().host.get()); };
  // ---- end
  if (rank->active()) trainer()->Initialise();
  while (host.step < steps) {
    if (rank->active()) {
      const double loss = trainer()->Step(text, ++host.step);
      if (rank->speaks())
        std::printf("step %lld loss %.9g\n", static_cast<long long>(host.step), loss);
      const auto request = requests.find(host.step);
      if (rank->speaks() && request != requests.end())
        DT_RETURN_IF_ERROR(rank->RequestSwitch(request->second, host.step).status());
    }
    // ---- DynaTrain
    DT_ASSIGN_OR_RETURN(const auto boundary, rank->AtStepBoundary(host.step));
    if (boundary.what == What::kJobEnded) return {};
    if (boundary.what == What::kCommitted && rank->active())
      host.step = std::stoll(boundary.job_state);
    // ---- end
  }
  return rank->speaks() ? rank->End("all steps done") : Status();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: own_loop TEXT STEPS LAYOUT [STEP:LAYOUT]...\n");
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.size() <= kContext) {
    std::fprintf(stderr, "own_loop: %s holds no text\n", argv[1]);
    return 2;
  }
  const Status status = Run(text, std::stoll(argv[2]), argv[3], Requests({argv + 4, argv + argc}));
  if (status.ok()) return 0;
  std::fprintf(stderr, "own_loop: %s\n", status.ToString().c_str());
  return 1;
}
