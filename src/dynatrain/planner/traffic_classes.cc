#include "dynatrain/planner/traffic_classes.h"

#include <map>
#include <utility>

namespace dynatrain::planner {

using vps::Box;
using vps::HolderSet;

Result<std::vector<TrafficClass>> ClassesBetween(const vps::ShardMap& from, const vps::ShardMap& to,
                                                 bool with_pieces) {
  const vps::StateCatalog& catalog = to.catalog();
  std::map<std::pair<HolderSet, HolderSet>, TrafficClass> classes;
  Status status;
  for (const vps::StateTensor& tensor : catalog.tensors()) {
    const ByteCount elem_bytes = vps::ElemBytes(tensor.dtype);
    const Box whole = Box::Whole(catalog.shape_of(tensor.id));
    if (whole.empty()) continue;
    std::map<TrafficClass*, std::map<Box, ByteCount>> pieces;
    to.VisitHolders(tensor.id, whole, [&](const Box& wanted, const HolderSet& needers) {
      int64_t held = 0;
      from.VisitHolders(tensor.id, wanted, [&](const Box& box, const HolderSet& holders) {
        held += box.elems();
        const ByteCount bytes = box.elems() * elem_bytes;
        const auto it =
            classes.try_emplace({holders, needers}, TrafficClass{holders, needers, 0, {}}).first;
        it->second.bytes += bytes;
        if (with_pieces) pieces[&it->second][box] = bytes;
      });
      if (held == wanted.elems() || !status.ok()) return;
      status = DataLoss(
          "tensor {}: rank {} needs {}, of which the old ranks hold {} of {} elements",
          catalog.NameOf(tensor.id), needers.At(0), wanted.ToString(), held, wanted.elems());
    });
    for (const auto& [cls, boxes] : pieces) {
      for (const auto& [box, bytes] : boxes) cls->pieces.push_back(bytes);
    }
  }
  DT_RETURN_IF_ERROR(status);
  std::vector<TrafficClass> list;
  for (auto& [sets, cls] : classes) list.push_back(std::move(cls));
  return list;
}

}  // namespace dynatrain::planner
