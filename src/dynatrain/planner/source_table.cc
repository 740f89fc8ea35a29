#include "dynatrain/planner/source_table.h"

#include <algorithm>
#include <vector>

#include "dynatrain/base/hash.h"
#include "dynatrain/planner/sources.h"
#include "dynatrain/planner/traffic_classes.h"

namespace dynatrain::planner {
namespace {

using vps::HolderSet;

// Beginnings tried for a class: more change little, and cost the square of the holders.
constexpr int64_t kMostStarts = 16;

uint64_t HashOf(const HolderSet& holders, const HolderSet& needers) {
  Hasher hasher;
  for (const HolderSet* set : {&holders, &needers}) {
    hasher.Add(set->size());
    for (int64_t i = 0; i < set->size(); ++i) hasher.Add(set->At(i));
  }
  return hasher.hash();
}

// The bytes that turn number i of the class sends, i counted from the start: the near feeds and the
// far one are taken as one, which is exact on one node.
std::vector<ByteCount> TurnsOf(const TrafficClass& cls, const PlanOptions& options) {
  const int64_t h = cls.holders.size();
  int64_t takers = 0;
  for (int64_t i = 0; i < cls.needers.size(); ++i) {
    if (!cls.holders.Contains(cls.needers.At(i))) ++takers;
  }
  std::vector<ByteCount> turns(static_cast<size_t>(h), 0);
  int64_t slot = 0;
  for (const ByteCount bytes : cls.pieces) {
    const int64_t stripes =
        std::clamp<int64_t>(bytes / options.stripe_bytes, 1, std::min(h, kMaxStripes));
    for (int64_t i = 0; i < takers * stripes; ++i, ++slot) {
      turns[static_cast<size_t>(DigitSum(slot, h, DigitsOf(h)))] += bytes / stripes;
    }
  }
  return turns;
}

class Solver {
 public:
  // The start of the class with the least fullest source; adds its load.
  int64_t Place(const HolderSet& holders, const std::vector<ByteCount>& turns) {
    const int64_t h = holders.size();
    int64_t best = 0;
    ByteCount least = INT64_MAX;
    for (int64_t start = 0; start < std::min(h, kMostStarts); ++start) {
      ByteCount fullest = 0;
      for (int64_t i = 0; i < h; ++i) {
        const ByteCount turn = turns[static_cast<size_t>(i)];
        if (turn > 0) fullest = std::max(fullest, loads_[holders.At((i + start) % h)] + turn);
      }
      if (fullest < least) {
        least = fullest;
        best = start;
      }
    }
    for (int64_t i = 0; i < h; ++i) {
      loads_[holders.At((i + best) % h)] += turns[static_cast<size_t>(i)];
    }
    return best;
  }

 private:
  std::map<RankId, ByteCount> loads_;
};

}  // namespace

Result<std::shared_ptr<const SourceTable>> SourceTable::Solve(const vps::ShardMap& from,
                                                              const vps::ShardMap& to,
                                                              const Topology& topology,
                                                              const PlanOptions& options) {
  DT_RETURN_IF_ERROR(topology.Validate());
  DT_ASSIGN_OR_RETURN(const std::vector<TrafficClass> classes,
                      ClassesBetween(from, to, /*with_pieces=*/true));
  struct Entry {
    const TrafficClass* cls;
    std::vector<ByteCount> turns;
    ByteCount total;
  };
  std::vector<Entry> entries;
  for (const TrafficClass& cls : classes) {
    Entry entry{&cls, TurnsOf(cls, options), 0};
    for (const ByteCount turn : entry.turns) entry.total += turn;
    if (entry.total > 0) entries.push_back(std::move(entry));
  }
  // Classes without a choice come first: they are what the others must keep clear of.
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    const bool fixed_a = a.turns.size() == 1;
    const bool fixed_b = b.turns.size() == 1;
    return fixed_a != fixed_b ? fixed_a : a.total > b.total;
  });
  auto table = std::make_shared<SourceTable>();
  Solver solver;
  for (const Entry& entry : entries) {
    const int64_t start = solver.Place(entry.cls->holders, entry.turns);
    if (entry.turns.size() > 1) {
      table->starts_[HashOf(entry.cls->holders, entry.cls->needers)] = start;
    }
  }
  return std::shared_ptr<const SourceTable>(std::move(table));
}

std::optional<int64_t> SourceTable::StartOf(const HolderSet& holders,
                                            const HolderSet& needers) const {
  const auto it = starts_.find(HashOf(holders, needers));
  if (it == starts_.end()) return std::nullopt;
  return it->second;
}

uint64_t SourceTable::Fingerprint() const {
  Hasher hasher;
  hasher.Add(starts_.size());
  for (const auto& [cls, start] : starts_) hasher.Add(cls).Add(start);
  return hasher.hash();
}

}  // namespace dynatrain::planner
