#include "dynatrain/planner/route.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "dynatrain/planner/sources.h"

namespace dynatrain::planner {
namespace {

using vps::Box;
using vps::HolderSet;
using vps::Shard;
using vps::ShardMap;
using vps::TensorId;

using Class = std::pair<HolderSet, HolderSet>;  // (holders, needers)

struct Found {
  Piece piece;
  int32_t cls;
};

// Collects the pieces that concern one rank, each with its class of equal (holders, needers).
class Collector {
 public:
  explicit Collector(std::vector<Found>* found) : found_(found) {}

  void Add(TensorId tensor, const Box& box, const HolderSet& holders, const HolderSet& needers) {
    const auto [it, fresh] =
        classes_.try_emplace(Class{holders, needers}, static_cast<int32_t>(classes_.size()));
    found_->push_back({{tensor, box}, it->second});
  }
  const std::map<Class, int32_t>& classes() const { return classes_; }

 private:
  std::map<Class, int32_t> classes_;
  std::vector<Found>* found_;
};

Status CollectNeeded(const ShardMap& from, const Shard& shard, const ShardMap& to, RankId rank,
                     Collector* collector) {
  Status status;
  to.VisitHolders(shard.tensor, shard.box, [&](const Box& wanted, const HolderSet& needers) {
    int64_t held = 0;
    from.VisitHolders(shard.tensor, wanted, [&](const Box& box, const HolderSet& holders) {
      held += box.elems();
      collector->Add(shard.tensor, box, holders, needers);
    });
    if (held != wanted.elems() && status.ok()) {
      status = DataLoss("tensor {}: rank {} needs {}, of which the old ranks hold {} of {} elements",
                        to.catalog().NameOf(shard.tensor), rank, wanted.ToString(), held, wanted.elems());
    }
  });
  return status;
}

// Pieces that the rank holds and somebody else needs. Those it needs itself were found already.
void CollectHeld(const ShardMap& from, const Shard& shard, const ShardMap& to, RankId rank,
                 Collector* collector) {
  from.VisitHolders(shard.tensor, shard.box, [&](const Box& held, const HolderSet& holders) {
    to.VisitHolders(shard.tensor, held, [&](const Box& box, const HolderSet& needers) {
      if (!needers.Contains(rank)) collector->Add(shard.tensor, box, holders, needers);
    });
  });
}

}  // namespace

Result<Route> PlanRoute(const ShardMap& from, const ShardMap& to, const Topology& topology, RankId rank) {
  if (from.catalog().Fingerprint() != to.catalog().Fingerprint()) {
    return InvalidArgument("the old and the new shard map are of different catalogs");
  }
  if (topology.ranks_per_node < 1) {
    return InvalidArgument("topology {}: {} ranks per node; at least 1 is right", topology.name,
                           topology.ranks_per_node);
  }
  std::vector<Found> found;
  Collector collector(&found);
  for (const Shard& shard : to.ShardsOf(rank)) {
    DT_RETURN_IF_ERROR(CollectNeeded(from, shard, to, rank, &collector));
  }
  for (const Shard& shard : from.ShardsOf(rank)) CollectHeld(from, shard, to, rank, &collector);
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.piece < b.piece; });

  std::vector<std::optional<SourceChoice>> choices(collector.classes().size());
  for (const auto& [cls, index] : collector.classes()) {
    choices[static_cast<size_t>(index)].emplace(cls.first, cls.second, topology, rank);
  }
  Route route;
  route.rank = rank;
  std::vector<int64_t> ordinals(choices.size(), 0);
  for (const Found& f : found) {
    const SourceChoice& choice = *choices[static_cast<size_t>(f.cls)];
    const int64_t ordinal = ordinals[static_cast<size_t>(f.cls)]++;
    const ByteCount bytes =
        f.piece.box.elems() * vps::ElemBytes(from.catalog().tensor(f.piece.tensor).dtype);
    if (choice.keeps()) {
      route.keeps.push_back(f.piece);
      route.kept_bytes += bytes;
    }
    if (choice.receives()) {
      route.receives.push_back({f.piece, choice.SourceOf(ordinal)});
      route.received_bytes += bytes;
    }
    for (const RankId target : choice.TargetsOf(ordinal)) {
      route.sends.push_back({f.piece, target});
      route.sent_bytes += bytes;
    }
  }
  return route;
}

}  // namespace dynatrain::planner
