// BenchConfig: what `dynatrain bench` was asked for, as one value that travels to every rank; and
// what follows from it.
#ifndef DYNATRAIN_APPS_BENCH_CONFIG_H_
#define DYNATRAIN_APPS_BENCH_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/engine/executor.h"
#include "dynatrain/engine/program.h"
#include "dynatrain/planner/plan.h"

namespace dynatrain::apps {

struct BenchConfig {
  std::string model;  // preset or path of a Hugging Face config.json
  std::string dtype = "bf16";
  ByteCount state_bytes = ByteCount{1} << 30;  // the model is narrowed to at most this
  std::string from;                            // SPEC
  std::string to;
  int32_t num_ranks = 0;
  std::string transport = "gloo";
  std::string mode = "keep";
  std::string verify = "moved";
  ByteCount budget = -1;  // extra bytes per rank; -1: no limit
  // In ranks: what was agreed on.
  int32_t phases = 1;
  ByteCount granule_bytes = engine::kDefaultGranuleBytes;
  int32_t repeat = 7;              // counted passes, after one that is not
  std::string topology = "local";  // preset or file: nodes in the order of messages and in the
                                   // prediction
  // Where ranks listen and, by rank, the network namespaces they live in; empty: the launcher's.
  std::string interface = "lo";
  std::vector<std::string> namespaces;

  std::string ToJson() const;
  static Result<BenchConfig> FromJson(const std::string& text);
};

// A BenchConfig made real, the same in the launcher and in every rank.
struct BenchSetup {
  planner::PlanRequest request;
  engine::CompileOptions compile;
  engine::Verify verify = engine::Verify::kMoved;

  // kInvalidArgument or kNotFound, naming flag and value.
  static Result<BenchSetup> Make(const BenchConfig& config);
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_BENCH_CONFIG_H_
