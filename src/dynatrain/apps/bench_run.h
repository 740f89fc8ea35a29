// Inside of RunBench: the ranks themselves.
#ifndef DYNATRAIN_APPS_BENCH_RUN_H_
#define DYNATRAIN_APPS_BENCH_RUN_H_

#include "dynatrain/apps/bench.h"

namespace dynatrain::apps {

// Runs every rank of options.config to its end and gathers what they tell.
Result<BenchEvents> RunBenchProcesses(const BenchOptions& options);
Result<BenchEvents> RunBenchThreads(const BenchOptions& options);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_BENCH_RUN_H_
