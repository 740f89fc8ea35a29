#include "dynatrain/apps/bench.h"

#include <algorithm>
#include <limits>

#include "dynatrain/apps/bench_run.h"
#include "dynatrain/apps/format.h"
#include "dynatrain/apps/memory_need.h"
#include "dynatrain/engine/plan_programs.h"
#include "dynatrain/vps/digest.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;

constexpr const char* kShares[] = {"pack", "wire", "unpack", "copy", "check", "memory"};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// From the first rank's begin to the last one's end, over the counted passes.
Spread SpreadOf(const std::map<int32_t, std::map<RankId, json>>& passes) {
  std::vector<double> seconds;
  for (const auto& [pass, ranks] : passes) {
    if (pass == 0) continue;
    double begin = std::numeric_limits<double>::infinity();
    double end = 0;
    for (const auto& [rank, event] : ranks) {
      begin = std::min(begin, event.at("begin").get<double>());
      end = std::max(end, event.at("end").get<double>());
    }
    seconds.push_back(end - begin);
  }
  if (seconds.empty()) return {};
  return {Median(seconds), *std::ranges::min_element(seconds), *std::ranges::max_element(seconds)};
}

// Of all ranks together.
double MedianCpu(const std::map<int32_t, std::map<RankId, json>>& passes) {
  std::vector<double> seconds;
  for (const auto& [pass, ranks] : passes) {
    if (pass == 0) continue;
    double sum = 0;
    for (const auto& [rank, event] : ranks) sum += event.at("cpu").get<double>();
    seconds.push_back(sum);
  }
  return Median(seconds);
}

double Took(const json& run) { return run.at("end").get<double>() - run.at("begin").get<double>(); }

std::map<std::string, double> SharesOfSlowest(const BenchEvents& events) {
  std::map<std::string, std::vector<double>> samples;
  for (const auto& [pass, ranks] : events.runs) {
    if (pass == 0) continue;
    const auto& slowest = *std::ranges::max_element(
        ranks, [](const auto& a, const auto& b) { return Took(a.second) < Took(b.second); });
    for (const char* share : kShares)
      samples[share].push_back(slowest.second.at(share).get<double>());
  }
  std::map<std::string, double> shares;
  for (const auto& [share, seconds] : samples) shares[share] = Median(seconds);
  return shares;
}

ByteCount MeasuredPeak(const BenchEvents& events) {
  ByteCount peak = std::numeric_limits<ByteCount>::min();
  for (const auto& [pass, ranks] : events.runs) {
    for (const auto& [rank, run] : ranks) {
      if (!run.contains("measured_peak_extra_bytes")) return -1;
      peak = std::max(peak, run.at("measured_peak_extra_bytes").get<ByteCount>());
    }
  }
  return std::max<ByteCount>(peak, 0);
}

Status CheckDigests(const BenchEvents& events, uint64_t* digest) {
  vps::StateDigest before, after;
  const auto read = [](const json& list) {
    return vps::StateDigest{list.at(0).get<uint64_t>(), list.at(1).get<uint64_t>()};
  };
  for (const auto& [rank, event] : events.digests) {
    before = vps::Combine(before, read(event.at("before")));
    after = vps::Combine(after, read(event.at("after")));
  }
  *digest = before.digest;
  if (before == after && before.replica == 0) return Status::Ok();
  return DataLoss(
      "the digest of all state is {:#x} before the move and {:#x} after it, the "
      "replica checks {} and {} (0 is right)",
      before.digest, after.digest, before.replica, after.replica);
}

// The rates at which the ranks worked, all at once.
engine::SimulationOptions Fit(const BenchEvents& events, engine::Verify verify) {
  engine::SimulationOptions fitted;
  fitted.verify = verify;
  double bytes = 0, copy_s = 0, check_s = 0, latency_s = 0, message_s = 0;
  for (const auto& [rank, rates] : events.rates) {
    bytes += rates.at("bytes").get<double>();
    copy_s += rates.at("copy_s").get<double>();
    check_s += rates.at("check_s").get<double>();
    latency_s += rates.at("latency_s").get<double>();
    message_s += rates.at("message_s").get<double>();
  }
  const auto count = static_cast<double>(std::max<size_t>(events.rates.size(), 1));
  if (copy_s > 0) fitted.copy_bytes_per_s = bytes / copy_s;
  if (check_s > 0) fitted.check_bytes_per_s = bytes / check_s;
  fitted.latency_s = latency_s / count;
  fitted.message_s = message_s / count;
  return fitted;
}

Status Predict(const engine::PlanPrograms& programs, const BenchSetup& setup,
               BenchFigures* figures) {
  planner::Topology topology = setup.request.topology;
  const bool one_node = figures->config.topology == "local";
  if (one_node && figures->limit.median > 0 && figures->fullest_rank_bytes > 0) {
    figures->fitted_link_bytes_per_s =
        static_cast<double>(figures->fullest_rank_bytes) / figures->limit.median;
    topology.intra_node_bytes_per_s = figures->fitted_link_bytes_per_s;
  }
  DT_ASSIGN_OR_RETURN(const engine::SimulationReport report,
                      engine::Simulate(programs.programs, topology, figures->fitted));
  figures->predicted_seconds = report.seconds;
  figures->wire_bytes = report.wire_bytes;
  return Status::Ok();
}

void AddStated(const engine::PlanPrograms& programs, BenchFigures* figures) {
  for (const engine::Program& program : programs.programs) {
    const engine::ProgramStats& stats = program.stats;
    figures->moved_bytes += stats.received_bytes;
    figures->messages += stats.messages;
    figures->fullest_rank_bytes =
        std::max({figures->fullest_rank_bytes, stats.received_bytes, stats.sent_bytes});
  }
  figures->peak_extra_bytes = programs.peak_extra_bytes;
}

// Old and new state of all ranks are in memory at once.
Status CheckMemory(const BenchSetup& setup) {
  ByteCount needed = 0;
  for (const vps::Layout* layout : {&setup.request.from, &setup.request.to}) {
    DT_ASSIGN_OR_RETURN(const auto map, vps::LayoutShardMap::Make(setup.request.catalog, *layout));
    for (const RankId rank : layout->Ranks()) {
      for (const vps::Buffer& buffer : map->BuffersOf(rank)) needed += buffer.bytes();
    }
  }
  DT_ASSIGN_OR_RETURN(const ByteCount available, AvailableMemory());
  if (needed <= available) return Status::Ok();
  return ResourceExhausted(
      "not enough memory: the old and the new state of all ranks take {}, {} is available; right "
      "is "
      "a smaller --state, or fewer replicas",
      FormatBytes(needed), FormatBytes(available));
}

}  // namespace

void BenchEvents::Add(RankId rank, std::string_view name, const json& fields) {
  if (name == "rates") rates[rank] = fields;
  if (name == "digest") digests[rank] = fields;
  if (name == "run") runs[fields.at("pass").get<int32_t>()][rank] = fields;
  if (name == "limit") limits[fields.at("pass").get<int32_t>()][rank] = fields;
}

Result<BenchFigures> RunBench(const BenchOptions& options) {
  BenchOptions agreed = options;
  BenchFigures figures;
  DT_ASSIGN_OR_RETURN(const BenchSetup setup, BenchSetup::Make(options.config));
  DT_RETURN_IF_ERROR(CheckMemory(setup));
  DT_ASSIGN_OR_RETURN(const auto plan, planner::MakePlan(setup.request));
  std::optional<ByteCount> budget;
  if (options.config.budget >= 0) budget = options.config.budget;
  DT_ASSIGN_OR_RETURN(const engine::PlanPrograms programs,
                      engine::CompilePlan(*plan, setup.request.topology, setup.compile, budget));
  agreed.config.phases = programs.granularity.phases;
  agreed.config.granule_bytes = programs.granularity.granule_bytes;
  figures.config = agreed.config;
  figures.state_bytes = setup.request.catalog->total_bytes();
  AddStated(programs, &figures);
  const bool threads = options.config.transport == "local";
  DT_ASSIGN_OR_RETURN(const BenchEvents events,
                      threads ? RunBenchThreads(agreed) : RunBenchProcesses(agreed));
  DT_RETURN_IF_ERROR(CheckDigests(events, &figures.digest));
  figures.seconds = SpreadOf(events.runs);
  figures.limit = SpreadOf(events.limits);
  if (!threads) {
    figures.cpu_seconds = MedianCpu(events.runs);
    figures.limit_cpu_seconds = MedianCpu(events.limits);
  }
  figures.share_seconds = SharesOfSlowest(events);
  figures.measured_peak_extra_bytes = MeasuredPeak(events);
  figures.fitted = Fit(events, setup.verify);
  DT_RETURN_IF_ERROR(Predict(programs, setup, &figures));
  return figures;
}

}  // namespace dynatrain::apps
