// The switch protocol by seed: whole jobs in virtual time with kills, stops, cuts and errors at
// every point.
//
//   switch_seed_test [first seed] [number of seeds]
//
// A failure prints its seed; `switch_seed_test SEED 1` runs it again, step by step the same.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "dynatrain/base/log.h"
#include "dynatrain/elastic/sim_world.h"

namespace dynatrain::elastic {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kDefaultSeeds = 100;
#else
constexpr uint64_t kDefaultSeeds = 500;
#endif

uint64_t first_seed = 1;
uint64_t num_seeds = kDefaultSeeds;

std::string Reproduce(const SimScript& script, const SimResult& result) {
  return fmt::format("{}\n  {}\nreproduce: switch_seed_test {} 1", script.ToString(),
                     result.ToString(), script.seed);
}

TEST(SwitchProtocol, HoldsForEverySeed) {
  int64_t committed = 0, rolled_back = 0, streamed = 0, lost = 0, deaths = 0, steps = 0;
  int failures = 0;
  for (uint64_t seed = first_seed; seed < first_seed + num_seeds && failures < 5; ++seed) {
    const SimScript script = SimScript::FromSeed(seed);
    const SimResult result = RunSim(script);
    committed += result.committed;
    rolled_back += result.rolled_back;
    streamed += result.streamed;
    lost += result.lost;
    deaths += result.deaths;
    steps += result.steps;
    if (result.violations.empty()) continue;
    ++failures;
    ADD_FAILURE() << Reproduce(script, result);
  }
  fmt::print(
      "seeds {}..{}: {} committed ({} in mode stream), {} aborted ({} with state lost), {} ranks "
      "lost, {} steps\n",
      first_seed, first_seed + num_seeds - 1, committed, streamed, rolled_back, lost, deaths,
      steps);
  if (num_seeds >= 500) {
    EXPECT_GT(committed, static_cast<int64_t>(num_seeds / 2)) << "too few runs get anywhere";
    EXPECT_GT(rolled_back, static_cast<int64_t>(num_seeds / 10)) << "faults strike too rarely";
    EXPECT_GT(streamed, static_cast<int64_t>(num_seeds / 10)) << "too few runs stream";
    EXPECT_GT(lost, static_cast<int64_t>(num_seeds / 100)) << "no fault strikes a streaming move";
  }
}

}  // namespace
}  // namespace dynatrain::elastic

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  dynatrain::InitLog("simulation", dynatrain::LogLevel::kError);
  if (argc > 1) dynatrain::elastic::first_seed = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) dynatrain::elastic::num_seeds = std::strtoull(argv[2], nullptr, 10);
  return RUN_ALL_TESTS();
}
