#include "dynatrain/engine/program.h"

#include <algorithm>
#include <map>
#include <set>

#include "dynatrain/base/hash.h"
#include "dynatrain/engine/memory_plan.h"
#include "dynatrain/engine/messages.h"
#include "dynatrain/engine/order.h"
#include "dynatrain/engine/phases.h"
#include "dynatrain/engine/staging.h"
#include "dynatrain/engine/ties.h"

namespace dynatrain::engine {
namespace {

using planner::Piece;
using planner::Route;
using planner::Transfer;
using vps::Buffer;
using vps::BufferIndex;
using vps::Shard;
using vps::ShardMap;

// Bumped when programs of two versions would not fit together.
constexpr uint64_t kProgramVersion = 7;

bool SamePlaces(const std::vector<const Shard*>& a, const std::vector<const Shard*>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Shard* x, const Shard* y) {
    return x->tensor == y->tensor && x->box == y->box && x->offset == y->offset &&
           x->strides == y->strides;
  });
}

std::vector<std::vector<const Shard*>> ByBuffer(const std::vector<Shard>& shards,
                                                size_t num_buffers) {
  std::vector<std::vector<const Shard*>> by_buffer(num_buffers);
  for (const Shard& shard : shards) by_buffer[static_cast<size_t>(shard.buffer)].push_back(&shard);
  return by_buffer;
}

// A new buffer takes over an old one that holds the same elements at the same places, and nothing
// else.
std::vector<BufferIndex> FindAliases(const Program& program) {
  const auto old_places = ByBuffer(program.old_shards, program.old_buffers.size());
  const auto new_places = ByBuffer(program.new_shards, program.new_buffers.size());
  // Boxes of one rank do not overlap, so the first shard names the buffer.
  std::map<std::pair<vps::TensorId, vps::Box>, BufferIndex> by_first;
  for (size_t i = 0; i < old_places.size(); ++i) {
    if (old_places[i].empty()) continue;
    by_first[{old_places[i][0]->tensor, old_places[i][0]->box}] = static_cast<BufferIndex>(i);
  }
  std::vector<BufferIndex> alias(program.new_buffers.size(), -1);
  for (size_t i = 0; i < alias.size(); ++i) {
    if (new_places[i].empty()) continue;
    const auto it = by_first.find({new_places[i][0]->tensor, new_places[i][0]->box});
    if (it == by_first.end()) continue;
    const Buffer& old = program.old_buffers[static_cast<size_t>(it->second)];
    const bool fits =
        program.new_buffers[i].elems <= old.elems && program.new_buffers[i].dtype == old.dtype;
    if (fits && SamePlaces(old_places[static_cast<size_t>(it->second)], new_places[i]))
      alias[i] = it->second;
  }
  return alias;
}

Status AddCopy(const Piece& piece, Program* program, Phase* phase) {
  DT_ASSIGN_OR_RETURN(const Region to, RegionOf(piece, program->new_shards, program->new_buffers));
  if (program->alias[static_cast<size_t>(to.buffer)] >= 0) {
    program->stats.aliased_bytes += to.bytes();
    return Status::Ok();
  }
  DT_ASSIGN_OR_RETURN(const Region from,
                      RegionOf(piece, program->old_shards, program->old_buffers));
  phase->copies.push_back({piece, from, to});
  return Status::Ok();
}

// Deals the route's pieces out to the program's phases.
Status BuildPhases(const Route& route, const vps::StateCatalog& catalog, const RoundTable& rounds,
                   Program* program) {
  const auto count = static_cast<int32_t>(program->phases.size());
  const PhaseCuts cuts(route, catalog, count);
  std::vector<PhaseTransfers> receives(program->phases.size());
  std::vector<PhaseTransfers> sends(program->phases.size());
  const auto deal = [&cuts](const std::vector<Transfer>& transfers,
                            std::vector<Transfer> PhaseTransfers::* list,
                            std::vector<PhaseTransfers>* phases) {
    for (const Transfer& transfer : transfers) {
      cuts.Visit(transfer.piece, [&](int32_t phase, const Piece& part) {
        ((*phases)[static_cast<size_t>(phase)].*list).push_back({part, transfer.peer});
      });
    }
  };
  deal(route.receives, &PhaseTransfers::direct, &receives);
  deal(route.relay_receives, &PhaseTransfers::relayed, &receives);
  deal(route.sends, &PhaseTransfers::direct, &sends);
  deal(route.relay_sends, &PhaseTransfers::relayed, &sends);
  for (int32_t p = 0; p < count; ++p) {
    const auto i = static_cast<size_t>(p);
    DT_ASSIGN_OR_RETURN(
        program->phases[i].receives,
        BuildMessages(*program, catalog, p, receives[i], rounds, /*sending=*/false));
    DT_ASSIGN_OR_RETURN(program->phases[i].sends,
                        BuildMessages(*program, catalog, p, sends[i], rounds, /*sending=*/true));
  }
  Status status;
  for (const Piece& piece : route.keeps) {
    cuts.Visit(piece, [&](int32_t phase, const Piece& part) {
      if (status.ok())
        status = AddCopy(part, program, &program->phases[static_cast<size_t>(phase)]);
    });
  }
  return status;
}

uint64_t HashOf(const Message& message, RankId from, RankId to) {
  Hasher hasher;
  hasher.Add(from).Add(to).Add(message.round).Add(message.tag).Add(message.bytes);
  for (const Fragment& fragment : message.fragments) {
    hasher.Add(fragment.piece.tensor);
    for (const int64_t lo : fragment.piece.box.lo().span()) hasher.Add(lo);
    for (const int64_t hi : fragment.piece.box.hi().span()) hasher.Add(hi);
  }
  return hasher.hash();
}

ByteCount WholePages(ByteCount bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

void FillTraffic(const Route& route, Program* program) {
  ProgramStats& stats = program->stats;
  stats.kept_bytes = route.kept_bytes;
  stats.sent_bytes = route.sent_bytes;
  stats.received_bytes = route.received_bytes;
  for (const Phase& phase : program->phases) {
    for (const Message& message : phase.sends) {
      program->message_balance += HashOf(message, program->rank, message.peer);
      ++stats.messages;
    }
    for (const Message& message : phase.receives) {
      program->message_balance -= HashOf(message, message.peer, program->rank);
    }
  }
}

bool HasMessages(const Phase& phase) { return !phase.sends.empty() || !phase.receives.empty(); }

void FillMemory(const CompileOptions& options, Program* program) {
  ProgramStats& stats = program->stats;
  ByteCount fresh = 0;
  for (size_t i = 0; i < program->new_buffers.size(); ++i) {
    if (program->alias[i] >= 0) continue;
    stats.new_state_bytes += program->new_buffers[i].bytes();
    fresh += MemoryBytes(program->new_buffers[i]);
  }
  for (const auto& [slot, needs] : SlotsOf(*program, options.transport_bytes)) {
    stats.staging_bytes += WholePages(needs.staging_bytes);
    stats.transport_bytes += needs.transport_bytes;
  }
  const ByteCount old_bytes = MemoryBytes(program->old_buffers);
  const ByteCount state = program->mode == Mode::kStream
                              ? PlanMemory(options.granule_bytes, program)
                              : old_bytes + fresh;
  stats.bookkeeping_bytes = BookkeepingBytes(*program);
  if (std::ranges::any_of(program->phases, HasMessages)) stats.heap_bytes = options.heap_bytes;
  stats.peak_extra_bytes =
      state - std::max(old_bytes, MemoryBytes(program->new_buffers)) + stats.staging_bytes +
      WholePages(stats.bookkeeping_bytes + stats.transport_bytes + stats.heap_bytes);
}

Status CheckInputs(const std::vector<RankId>& ranks, const CompileOptions& options) {
  if (!std::is_sorted(ranks.begin(), ranks.end()) ||
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return InvalidArgument("the ranks that take part must ascend without repeating");
  }
  if (options.phases < 1 || options.window < 1 || options.chunk_bytes < 1) {
    return InvalidArgument(
        "{} phases, a window of {} messages, chunks of {} bytes: all must be at least 1",
        options.phases, options.window, options.chunk_bytes);
  }
  if (options.transport_bytes < 0 || options.heap_bytes < 0) {
    return InvalidArgument(
        "{} bytes of a transport for an operation, {} bytes of the heap; 0 or more are right",
        options.transport_bytes, options.heap_bytes);
  }
  if (options.granule_bytes < kPageBytes || options.granule_bytes % kPageBytes != 0) {
    return InvalidArgument("granules of {} bytes; a multiple of {} is right", options.granule_bytes,
                           kPageBytes);
  }
  return Status::Ok();
}

void NameTensors(const Route& route, const vps::StateCatalog& catalog, Program* program) {
  std::set<vps::TensorId> moving;
  for (const auto* transfers :
       {&route.sends, &route.receives, &route.relay_sends, &route.relay_receives}) {
    for (const Transfer& transfer : *transfers) moving.insert(transfer.piece.tensor);
  }
  for (const TiedPart& tie : program->ties) moving.insert(tie.piece.tensor);
  for (const vps::TensorId id : moving) program->tensor_names.emplace_back(id, catalog.NameOf(id));
}

}  // namespace

std::string NameOf(const Program& program, vps::TensorId tensor) {
  const auto& names = program.tensor_names;
  const auto it =
      std::lower_bound(names.begin(), names.end(), tensor,
                       [](const auto& entry, vps::TensorId id) { return entry.first < id; });
  return it != names.end() && it->first == tensor ? it->second : fmt::format("#{}", tensor);
}

Result<Region> RegionOf(const Piece& piece, const std::vector<Shard>& shards,
                        const std::vector<Buffer>& buffers) {
  auto it = std::lower_bound(
      shards.begin(), shards.end(), piece.tensor,
      [](const Shard& shard, vps::TensorId tensor) { return shard.tensor < tensor; });
  for (; it != shards.end() && it->tensor == piece.tensor; ++it) {
    if (!it->box.Contains(piece.box)) continue;
    int64_t offset = it->offset;
    for (int axis = 0; axis < piece.box.dims(); ++axis) {
      offset += (piece.box.lo()[axis] - it->box.lo()[axis]) * it->strides[axis];
    }
    const ByteCount elem_bytes = vps::ElemBytes(buffers[static_cast<size_t>(it->buffer)].dtype);
    return Region{it->buffer, offset, piece.box.shape(), it->strides,
                  static_cast<int32_t>(elem_bytes)};
  }
  return Internal("tensor {}: no shard holds the piece {} whole", piece.tensor,
                  piece.box.ToString());
}

std::vector<RankId> PeersOf(const Program& program) {
  std::set<RankId> peers;
  for (const Phase& phase : program.phases) {
    for (const Message& message : phase.receives) peers.insert(message.peer);
    for (const Message& message : phase.sends) peers.insert(message.peer);
  }
  return {peers.begin(), peers.end()};
}

Result<Mode> ParseMode(std::string_view name) {
  if (name == "keep") return Mode::kKeep;
  if (name == "stream") return Mode::kStream;
  return InvalidArgument("mode {}: keep or stream", name);
}

Result<Program> Compile(const Route& route, const ShardMap& from, const ShardMap& to,
                        const planner::Topology& topology, const std::vector<RankId>& ranks,
                        const CompileOptions& options) {
  DT_RETURN_IF_ERROR(CheckInputs(ranks, options));
  Program program;
  program.rank = route.rank;
  program.mode = options.mode;
  program.window = options.phases == 1 ? options.window : std::min(options.window, kWindowOfPhases);
  program.chunk_bytes = options.chunk_bytes;
  program.old_shards = from.ShardsOf(route.rank);
  program.new_shards = to.ShardsOf(route.rank);
  program.old_buffers = from.BuffersOf(route.rank);
  program.new_buffers = to.BuffersOf(route.rank);
  program.alias = FindAliases(program);
  program.phases.resize(static_cast<size_t>(options.phases));
  DT_RETURN_IF_ERROR(BuildPhases(route, to.catalog(), RoundTable(ranks, topology), &program));
  DT_ASSIGN_OR_RETURN(program.ties, TiedPartsOf(from, route.rank));
  NameTensors(route, to.catalog(), &program);
  FillTraffic(route, &program);
  FillMemory(options, &program);
  Hasher inputs;
  inputs.Add(kProgramVersion)
      .Add(from.Fingerprint())
      .Add(to.Fingerprint())
      .Add(topology.Fingerprint());
  inputs.Add(ranks.size());
  for (const RankId rank : ranks) inputs.Add(rank);
  inputs.Add(options.mode).Add(options.phases).Add(options.window).Add(options.chunk_bytes);
  inputs.Add(options.granule_bytes).Add(options.transport_bytes).Add(options.heap_bytes);
  program.inputs_fingerprint = inputs.hash();
  return program;
}

}  // namespace dynatrain::engine
