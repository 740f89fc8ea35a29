#include "dynatrain/planner/route.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "dynatrain/base/hash.h"
#include "dynatrain/planner/source_table.h"
#include "dynatrain/planner/sources.h"

namespace dynatrain::planner {
namespace {

using vps::Box;
using vps::DType;
using vps::HolderSet;
using vps::Kind;
using vps::Shard;
using vps::ShardMap;
using vps::StateCatalog;
using vps::TensorId;

// Pieces of one class are dealt by one SourceChoice.
struct Class {
  HolderSet holders;
  HolderSet needers;
  std::optional<HolderSet> derivers;
  friend auto operator<=>(const Class&, const Class&) = default;
};

// The tensor from which a rank can compute `tensor`, if any.
std::optional<TensorId> MasterOf(const StateCatalog& catalog, TensorId id) {
  const vps::StateTensor& tensor = catalog.tensor(id);
  const bool half = tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16;
  if (tensor.kind != Kind::kParam || !half) return std::nullopt;
  const std::optional<TensorId> master = catalog.Find(tensor.parameter, Kind::kMaster);
  if (!master || catalog.tensor(*master).dtype != DType::kF32) return std::nullopt;
  return master;
}

// Collects the pieces that concern one rank, each with its class.
class Collector {
 public:
  Collector(const ShardMap& from, const ShardMap& to, RankId rank, bool derive)
      : from_(from), to_(to), rank_(rank), derive_(derive) {}

  Status CollectNeeded(const Shard& shard) {
    Status status;
    to_.VisitHolders(shard.tensor, shard.box, [&](const Box& wanted, const HolderSet& needers) {
      int64_t held = 0;
      from_.VisitHolders(shard.tensor, wanted, [&](const Box& box, const HolderSet& holders) {
        held += box.elems();
        Add({shard.tensor, box}, holders, needers);
      });
      if (held == wanted.elems() || !status.ok()) return;
      status = DataLoss(
          "tensor {}: rank {} needs {}, of which the old ranks hold {} of {} elements",
          to_.catalog().NameOf(shard.tensor), rank_, wanted.ToString(), held, wanted.elems());
    });
    return status;
  }

  // Pieces that the rank holds and somebody else needs. Those it needs itself were found already.
  void CollectHeld(const Shard& shard) {
    from_.VisitHolders(shard.tensor, shard.box, [&](const Box& held, const HolderSet& holders) {
      to_.VisitHolders(shard.tensor, held, [&](const Box& box, const HolderSet& needers) {
        if (!needers.Contains(rank_)) Add({shard.tensor, box}, holders, needers);
      });
    });
  }

  const std::map<Class, int32_t>& classes() const { return classes_; }
  std::vector<ClassedPiece>& found() { return found_; }

 private:
  void Add(const Piece& piece, const HolderSet& holders, const HolderSet& needers) {
    if (derive_ && AddDerivable(piece, holders, needers)) return;
    AddAs(piece, {holders, needers, std::nullopt});
  }

  bool AddDerivable(const Piece& piece, const HolderSet& holders, const HolderSet& needers) {
    const std::optional<TensorId> master = MasterOf(to_.catalog(), piece.tensor);
    if (!master) return false;
    int64_t covered = 0;
    std::vector<std::pair<Box, HolderSet>> parts;
    to_.VisitHolders(*master, piece.box, [&](const Box& box, const HolderSet& derivers) {
      covered += box.elems();
      parts.emplace_back(box, derivers);
    });
    if (covered != piece.box.elems()) return false;
    for (const auto& [box, derivers] : parts) {
      AddAs({piece.tensor, box}, {holders, needers, derivers});
    }
    return true;
  }

  void AddAs(const Piece& piece, Class cls) {
    const auto next = static_cast<int32_t>(classes_.size());
    const auto [it, fresh] = classes_.try_emplace(std::move(cls), next);
    found_.push_back({piece, it->second});
  }

  const ShardMap& from_;
  const ShardMap& to_;
  const RankId rank_;
  const bool derive_;
  std::map<Class, int32_t> classes_;
  std::vector<ClassedPiece> found_;
};

Status CheckInputs(const ShardMap& from, const ShardMap& to, const Topology& topology,
                   const PlanOptions& options) {
  const bool same = &from.catalog() == &to.catalog();
  if (!same && from.catalog().Fingerprint() != to.catalog().Fingerprint()) {
    return InvalidArgument("the old and the new shard map are of different catalogs");
  }
  if (topology.ranks_per_node < 1) {
    return InvalidArgument("topology {}: {} ranks per node; at least 1 is right", topology.name,
                           topology.ranks_per_node);
  }
  if (options.stripe_bytes < 1) {
    return InvalidArgument("stripes of {} bytes; at least 1 is right", options.stripe_bytes);
  }
  return Status::Ok();
}

void SortTransfers(std::vector<Transfer>* transfers) {
  const auto less = [](const Transfer& a, const Transfer& b) {
    return std::tie(a.piece, a.peer) < std::tie(b.piece, b.peer);
  };
  if (!std::is_sorted(transfers->begin(), transfers->end(), less)) {
    std::sort(transfers->begin(), transfers->end(), less);
  }
}

}  // namespace

uint64_t PlanOptions::Fingerprint() const {
  return Hasher()
      .Add(relays)
      .Add(derive)
      .Add(stripe_bytes)
      .Add(table ? table->Fingerprint() : 0)
      .hash();
}

Result<Route> PlanRoute(const ShardMap& from, const ShardMap& to, const Topology& topology,
                        RankId rank, const PlanOptions& options) {
  DT_RETURN_IF_ERROR(CheckInputs(from, to, topology, options));
  Collector collector(from, to, rank, options.derive);
  for (const Shard& shard : to.ShardsOf(rank)) DT_RETURN_IF_ERROR(collector.CollectNeeded(shard));
  for (const Shard& shard : from.ShardsOf(rank)) collector.CollectHeld(shard);
  Route route;
  route.rank = rank;
  route.pieces = std::move(collector.found());
  std::sort(route.pieces.begin(), route.pieces.end(),
            [](const ClassedPiece& a, const ClassedPiece& b) { return a.piece < b.piece; });

  std::vector<std::optional<SourceChoice>> choices(collector.classes().size());
  for (const auto& [cls, index] : collector.classes()) {
    choices[static_cast<size_t>(index)].emplace(
        cls.holders, cls.needers, cls.derivers ? &*cls.derivers : nullptr, topology, rank, options);
  }
  for (const auto& [piece, cls] : route.pieces) {
    const ByteCount elem_bytes = vps::ElemBytes(from.catalog().tensor(piece.tensor).dtype);
    choices[static_cast<size_t>(cls)]->Deal(piece, elem_bytes, &route);
  }
  for (auto* list : {&route.sends, &route.receives, &route.relay_sends, &route.relay_receives}) {
    SortTransfers(list);
  }
  return route;
}

std::vector<Multicast> MulticastsFrom(const Route& route) {
  std::map<std::vector<RankId>, std::vector<Piece>> by_members;
  for (size_t i = 0; i < route.relay_sends.size();) {
    const Piece& piece = route.relay_sends[i].piece;
    std::vector<RankId> members;
    for (; i < route.relay_sends.size() && route.relay_sends[i].piece == piece; ++i) {
      members.push_back(route.relay_sends[i].peer);
    }
    by_members[std::move(members)].push_back(piece);
  }
  std::vector<Multicast> multicasts;
  for (auto& [members, pieces] : by_members) {
    multicasts.push_back({route.rank, members, std::move(pieces)});
  }
  return multicasts;
}

}  // namespace dynatrain::planner
