#include "dynatrain/engine/ties.h"

#include <algorithm>

#include "dynatrain/engine/copy.h"
#include "dynatrain/vps/digest.h"

namespace dynatrain::engine {

bool HasTies(const vps::StateCatalog& catalog) {
  return std::ranges::any_of(catalog.tensors(), [&catalog](const vps::StateTensor& tensor) {
    return catalog.parameter_of(tensor.id).homes.size() > 1;
  });
}

Result<std::vector<TiedPart>> TiedPartsOf(const vps::ShardMap& map, RankId rank) {
  const std::vector<vps::Shard> shards = map.ShardsOf(rank);
  const std::vector<vps::Buffer> buffers = map.BuffersOf(rank);
  std::vector<TiedPart> parts;
  Status status;
  for (const vps::Shard& shard : shards) {
    if (map.catalog().parameter_of(shard.tensor).homes.size() < 2) continue;
    map.VisitHolders(shard.tensor, shard.box,
                     [&](const vps::Box& box, const vps::HolderSet& holders) {
                       if (holders.size() < 2 || !status.ok()) return;
                       const planner::Piece piece{shard.tensor, box};
                       const Result<Region> region = RegionOf(piece, shards, buffers);
                       status = region.status();
                       if (status.ok())
                         parts.push_back({piece, *region, *holders.IndexOf(rank), holders.size()});
                     });
  }
  DT_RETURN_IF_ERROR(status);
  return parts;
}

TieSums SumTies(const Program& program, const StateBuffers& old_state) {
  TieSums sums;
  for (const TiedPart& part : program.ties) {
    const uint64_t hash = HashRegion(old_state.bytes(part.region.buffer), part.region);
    const uint64_t term = vps::ReplicaTerm(program.inputs_fingerprint, part.piece.tensor,
                                           part.piece.box, part.holder, part.holders, hash);
    AddTies({{NameOf(program, part.piece.tensor), term}}, &sums);
  }
  return sums;
}

void AddTies(const TieSums& more, TieSums* sums) {
  for (const auto& [name, sum] : more) {
    uint64_t& total = (*sums)[name];
    total = vps::AddReplicaTerms(total, sum);
  }
}

Status CheckTies(const TieSums& sums) {
  std::string different;
  for (const auto& [name, sum] : sums) {
    if (sum != 0) different += (different.empty() ? "" : ", ") + name;
  }
  if (different.empty()) return Status::Ok();
  return DataLoss("tied tensor {}: its copies in the old layout differ", different);
}

}  // namespace dynatrain::engine
