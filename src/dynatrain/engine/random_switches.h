// For tests: random switches within random memory budgets, from a seed to a verdict.
#ifndef DYNATRAIN_ENGINE_RANDOM_SWITCHES_H_
#define DYNATRAIN_ENGINE_RANDOM_SWITCHES_H_

#include <cstddef>
#include <cstdint>
#include <set>

namespace dynatrain::engine::testing {

struct RandomSwitchCounts {
  int streamed = 0;
  int phased = 0;          // with more than one phase
  int relayed = 0;         // with relays
  int uneven = 0;          // on several nodes
  std::set<size_t> ranks;  // how many took part
};

// Draws a catalog, two layouts of 1 to 17 ranks together, nodes (often of different size), mode,
// relays, a budget that some number of phases meets, and an unkind transport: rendezvous or
// buffered, few operations in flight, short messages, timing by the seed. Then expects that
//  - the programs pass the checker with 1 and 2 messages in flight, and none states more than the
//  budget;
//  - run by threads (if `run`), the state is exact, element by element, and the memory taken stays
//  within what was stated.
// Failures name the seed.
void CheckRandomSwitch(uint64_t seed, bool run, RandomSwitchCounts* counts);

}  // namespace dynatrain::engine::testing

#endif  // DYNATRAIN_ENGINE_RANDOM_SWITCHES_H_
