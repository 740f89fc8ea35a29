// A whole run of `dynatrain bench`: ranks as processes or threads, their figures put together.
#ifndef DYNATRAIN_APPS_BENCH_H_
#define DYNATRAIN_APPS_BENCH_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dynatrain/apps/bench_config.h"
#include "dynatrain/apps/control.h"
#include "dynatrain/engine/simulate.h"

namespace dynatrain::apps {

struct BenchOptions {
  BenchConfig config;
  Address bind{"127.0.0.1", 0};  // of the store, through which processes find each other
  std::string log_directory;     // empty: a temporary one, kept only after a failure
};

// What all ranks told, by pass; pass 0 is not counted.
struct BenchEvents {
  std::map<int32_t, std::map<RankId, nlohmann::json>> runs, limits;
  std::map<RankId, nlohmann::json> rates, digests;

  void Add(RankId rank, std::string_view name, const nlohmann::json& fields);
};

// Median, least and most of counted passes, in seconds.
struct Spread {
  double median = 0, least = 0, most = 0;
};

struct BenchFigures {
  BenchConfig config;  // with the phases that were agreed on
  ByteCount state_bytes = 0;
  ByteCount moved_bytes = 0, wire_bytes = 0;
  ByteCount fullest_rank_bytes = 0;  // into or out of one rank
  int64_t messages = 0;
  Spread seconds, limit;
  // Processor time of all ranks: medians over the passes. 0 where ranks share a process.
  double cpu_seconds = 0, limit_cpu_seconds = 0;
  // Busy time of the slowest rank: medians over the passes.
  std::map<std::string, double> share_seconds;
  ByteCount peak_extra_bytes = 0;           // as stated before, of the rank that needs most
  ByteCount measured_peak_extra_bytes = 0;  // -1 where ranks share a process
  uint64_t digest = 0;                      // of all state, equal before and after
  engine::SimulationOptions fitted;
  double fitted_link_bytes_per_s = 0;  // of each rank; 0: the topology's own links
  double predicted_seconds = 0;
};

// kDataLoss if the state after a move is not the state before it; else what went wrong first.
Result<BenchFigures> RunBench(const BenchOptions& options);

nlohmann::json FiguresAsJson(const BenchFigures& figures);
std::string FiguresAsText(const BenchFigures& figures);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_BENCH_H_
