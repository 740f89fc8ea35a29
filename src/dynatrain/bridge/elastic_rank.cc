#include "dynatrain/bridge/elastic_rank.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "dynatrain/base/log.h"
#include "dynatrain/bridge/fence.h"

namespace dynatrain::bridge {
namespace {

std::string LeftKey(RankId rank) { return fmt::format("left/{}", rank); }

}  // namespace

ElasticRank::ElasticRank(RankEnvironment environment,
                         std::shared_ptr<const vps::StateCatalog> catalog, elastic::Host* host,
                         const ElasticRankOptions& options)
    : environment_(std::move(environment)),
      catalog_(std::move(catalog)),
      host_(host),
      options_(options) {}

Result<std::unique_ptr<ElasticRank>> ElasticRank::Join(
    const RankEnvironment& environment, std::shared_ptr<const vps::StateCatalog> catalog,
    elastic::Host* host, const ElasticRankOptions& options) {
  std::unique_ptr<ElasticRank> rank(
      new ElasticRank(environment, std::move(catalog), host, options));
  DT_RETURN_IF_ERROR(rank->Connect());
  DT_ASSIGN_OR_RETURN(std::shared_ptr<elastic::LayoutInstance> first, rank->FirstInstance());
  elastic::SwitchParticipant::Context context{.rank = environment.rank,
                                              .num_ranks = environment.num_ranks,
                                              .catalog = rank->catalog_,
                                              .topology = options.topology,
                                              .options = options.switching,
                                              .host = host,
                                              .groups = rank->groups_.get(),
                                              .clock = &MonotonicClock()};
  auto on_report = options.on_report;
  if (!on_report) on_report = [](const elastic::SwitchReport&) {};
  DT_ASSIGN_OR_RETURN(rank->agent_, elastic::SwitchAgent::Start(std::move(context), rank->store_,
                                                                first, on_report));
  rank->boundary_left_ = MonotonicClock().Now();
  return rank;
}

Result<std::unique_ptr<ElasticRank>> ElasticRank::Join(std::vector<vps::Parameter> parameters,
                                                       elastic::Host* host,
                                                       const ElasticRankOptions& options) {
  auto catalog = std::make_shared<vps::StateCatalog>();
  for (vps::Parameter& parameter : parameters)
    DT_RETURN_IF_ERROR(catalog->Add(std::move(parameter)));
  DT_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                      ReadRankEnvironment(ProcessEnvironment()));
  if (!environment) {
    return InvalidArgument(
        "neither RANK nor SLURM_PROCID is set: start one process per rank with torchrun or srun");
  }
  return Join(*environment, std::move(catalog), host, options);
}

Status ElasticRank::Connect() {
  DT_ASSIGN_OR_RETURN(const std::string here, AddressTowards(environment_.store));
  if (environment_.serves_store) {
    DT_ASSIGN_OR_RETURN(server_, StoreServer::Start({here, environment_.store.port}));
  }
  DT_ASSIGN_OR_RETURN(std::unique_ptr<elastic::Store> store,
                      ConnectStore(environment_.store, options_.join_timeout));
  store_ = std::move(store);
  GlooOptions gloo = environment_.gloo;
  if (gloo.interface.empty() && gloo.address.empty()) gloo.address = here;
  DT_ASSIGN_OR_RETURN(groups_, GlooGroupFactory::Connect(environment_.rank, environment_.store,
                                                         gloo, options_.join_timeout));
  return {};
}

Result<std::shared_ptr<const vps::LayoutShardMap>> ElasticRank::MapOf(
    const std::string& spec) const {
  DT_ASSIGN_OR_RETURN(const vps::Layout layout, vps::ParseLayout(spec, environment_.num_ranks));
  DT_RETURN_IF_ERROR(layout.Validate(catalog_->num_layers(), environment_.num_ranks));
  DT_RETURN_IF_ERROR(host_->CheckLayout(layout));
  return vps::LayoutShardMap::Make(catalog_, layout);
}

Result<std::shared_ptr<elastic::LayoutInstance>> ElasticRank::FirstInstance() {
  auto instance = std::make_shared<elastic::LayoutInstance>();
  instance->rank = environment_.rank;
  DT_ASSIGN_OR_RETURN(instance->map, MapOf(options_.layout));
  DT_ASSIGN_OR_RETURN(instance->state, engine::StateBuffers::Allocate(
                                           *instance->map, instance->rank, engine::Fill::kZero));
  if (!instance->active()) return instance;
  for (const elastic::GroupSpec& spec :
       elastic::GroupsOfRank(instance->map->layout(), instance->rank)) {
    DT_ASSIGN_OR_RETURN(instance->groups[spec.axis],
                        groups_->MakeGroup("0", spec, options_.join_timeout));
  }
  DT_ASSIGN_OR_RETURN(instance->host, host_->Prepare(*instance));
  return instance;
}

ElasticRank::~ElasticRank() {
  agent_.reset();
  groups_.reset();
  if (!store_) return;
  // A store that is lost has nobody left to tell.
  static_cast<void>(store_->Set(LeftKey(environment_.rank), "").ok());
  if (server_) AwaitOthers();
}

void ElasticRank::AwaitOthers() {
  for (RankId rank = 0; rank < environment_.num_ranks; ++rank) {
    const Status left = store_->Wait(LeftKey(rank), options_.join_timeout).status();
    if (left.ok()) continue;
    LogError("rank {} did not leave: {}", rank, left.ToString());
    return;
  }
}

bool ElasticRank::speaks() {
  return std::ranges::min(current().map->layout().Ranks()) == environment_.rank;
}

Result<bool> ElasticRank::AllReady() {
  const bool ready = agent_->ready();
  const auto world = current().groups.find("world");
  const int64_t ranks = current().map->layout().world_size();
  if (ranks == 1) return ready;
  return FenceResult("agree on a switch", [&] {
    std::vector<at::Tensor> sum{at::full({1}, ready ? 1 : 0, at::kLong)};
    BackendOf(*world->second)->allreduce(sum)->wait();
    return sum[0].item<int64_t>() == ranks;
  });
}

Result<elastic::BoundaryResult> ElasticRank::AtStepBoundary(int64_t step) {
  if (!active()) return AtStepBoundary(step, false);
  DT_ASSIGN_OR_RETURN(const bool all_ready, AllReady());
  return AtStepBoundary(step, all_ready);
}

Result<elastic::BoundaryResult> ElasticRank::AtStepBoundary(int64_t step, bool all_ready) {
  Result<elastic::BoundaryResult> result = elastic::BoundaryResult();
  if (active()) {
    agent_->StepTook(ToSeconds(MonotonicClock().Now() - boundary_left_));
    result = agent_->AtStepBoundary(step, all_ready);
  } else {
    result = agent_->WaitWhileIdle();
  }
  if (!result.ok()) return result;
  boundary_left_ = MonotonicClock().Now();
  if (result->what == elastic::BoundaryResult::What::kCommitted && active())
    agent_->FirstStepStarts();
  return result;
}

Result<int64_t> ElasticRank::RequestSwitch(const std::string& spec, int64_t step) {
  DT_ASSIGN_OR_RETURN(const std::shared_ptr<const vps::LayoutShardMap> map, MapOf(spec));
  return elastic::RequestSwitch(*store_, map->layout().ToString(), step);
}

Status ElasticRank::End(const std::string& reason) { return elastic::EndJob(*store_, reason); }

}  // namespace dynatrain::bridge
