// What a simulated job goes through, drawn from a seed.
#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/ranges.h>

#include "dynatrain/elastic/sim_world.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::elastic {
namespace {

using std::chrono::milliseconds;
using Kind = SimFault::Kind;

constexpr std::array kKindNames = {"kill",       "freeze",      "store error",
                                   "store cut",  "network cut", "transfer error",
                                   "corruption", "setup error", "allocation error"};

vps::BufferRule DrawBufferRule(Random* random) {
  vps::BufferRule rule;
  rule.order =
      random->OneIn(2) ? vps::BufferRule::Order::kForward : vps::BufferRule::Order::kReverse;
  switch (random->Between(0, 2)) {
    case 0:
      rule.cut = vps::BufferRule::Cut::kContiguous;
      break;
    case 1:
      rule.cut = vps::BufferRule::Cut::kBucketed;
      break;
    default:
      rule.cut = vps::BufferRule::Cut::kBucketedElems;
      rule.bucket_elems = random->Between(5, 40);
  }
  if (random->OneIn(3)) rule.end_alignment = random->Between(2, 9);
  return rule;
}

// Any degrees that fit, on any of the ranks in any order.
std::string DrawLayout(Random* random, int32_t num_ranks) {
  vps::Layout layout;
  do {
    layout.tp = static_cast<int32_t>(random->Between(1, 3));
    layout.pp = static_cast<int32_t>(random->Between(1, 3));
    layout.dp = static_cast<int32_t>(random->Between(1, 4));
  } while (layout.world_size() > num_ranks);
  layout.zero = random->OneIn(4) ? 0 : 1;
  layout.buffer = DrawBufferRule(random);
  if (layout.pp == 2 && random->OneIn(2)) layout.split = {1, 2};
  std::vector<RankId> ranks(static_cast<size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::shuffle(ranks, *random);
  ranks.resize(static_cast<size_t>(layout.world_size()));
  layout.ranks = ranks;
  return layout.ToString();
}

SimFault DrawFault(Random* random, const SimScript& script) {
  SimFault fault{};
  fault.kind = static_cast<Kind>(random->Between(0, static_cast<int64_t>(kKindNames.size()) - 1));
  if (fault.kind == Kind::kCorruption && script.verify == engine::Verify::kOff)
    fault.kind = Kind::kKill;
  fault.victim = static_cast<RankId>(random->Between(0, script.num_ranks - 1));
  fault.peer = static_cast<RankId>(random->Between(0, script.num_ranks - 1));
  fault.at_step = random->Between(0, 60 + 60 * static_cast<int64_t>(script.switches.size()));
  // From shorter than any deadline to longer than most.
  fault.lasts = milliseconds(int64_t{1} << random->Between(3, 13));
  return fault;
}

}  // namespace

SimScript SimScript::FromSeed(uint64_t seed) {
  Random random(Mix64(seed));
  SimScript script;
  script.seed = seed;
  script.num_ranks = static_cast<int32_t>(random.Between(3, 5));
  script.first = DrawLayout(&random, script.num_ranks);
  const int64_t switches = random.Between(1, 2);
  for (int64_t i = 0; i < switches; ++i) {
    script.switches.push_back(random.OneIn(40) ? "tp=2,pp=7"
                                               : DrawLayout(&random, script.num_ranks));
  }
  script.verify = static_cast<engine::Verify>(random.Between(0, 2));
  script.rendezvous = !random.OneIn(3);
  script.silent_deaths = random.OneIn(3);
  script.overlapping_requests = random.OneIn(4);
  if (random.OneIn(3)) {
    script.impatience = random.Between(5, 60);
    script.jump = milliseconds(int64_t{1} << random.Between(0, 11));
  }
  if (random.OneIn(3)) script.store_latency = milliseconds(int64_t{1} << random.Between(0, 7));
  const int64_t faults = random.OneIn(8) ? 0 : random.OneIn(3) ? random.Between(2, 3) : 1;
  for (int64_t i = 0; i < faults; ++i) script.faults.push_back(DrawFault(&random, script));
  if (random.OneIn(3)) script.mode = engine::Mode::kStream;
  if (random.OneIn(3)) script.budget = ByteCount{1} << 30;
  if (random.OneIn(2)) script.phases = static_cast<int32_t>(random.Between(2, 6));
  return script;
}

std::string SimScript::ToString() const {
  std::string text = fmt::format("seed {}: {} ranks, {} -> {}", seed, num_ranks, first,
                                 fmt::join(switches, " -> "));
  for (const SimFault& fault : faults) {
    text += fmt::format("; {} of rank {} at its step {} ({} s, peer {})",
                        kKindNames[static_cast<size_t>(fault.kind)], fault.victim, fault.at_step,
                        ToSeconds(fault.lasts), fault.peer);
  }
  return text + fmt::format(
                    "; {}{} in {} phases, verify {}, {}{}{}, impatience {} x {} s, store "
                    "latency {} s",
                    mode == engine::Mode::kStream ? "stream" : "keep",
                    budget ? " within a budget" : "", phases, static_cast<int>(verify),
                    rendezvous ? "rendezvous" : "buffered", silent_deaths ? ", silent deaths" : "",
                    overlapping_requests ? ", overlapping requests" : "", impatience,
                    ToSeconds(jump), ToSeconds(store_latency));
}

std::string SimResult::ToString() const { return fmt::format("{}", fmt::join(violations, "\n  ")); }

}  // namespace dynatrain::elastic
