#include "dynatrain/engine/program.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "dynatrain/base/hash.h"
#include "dynatrain/engine/copy.h"
#include "dynatrain/engine/order.h"

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
constexpr uint64_t kProgramVersion = 1;

bool SamePlaces(const std::vector<const Shard*>& a, const std::vector<const Shard*>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Shard* x, const Shard* y) {
    return x->tensor == y->tensor && x->box == y->box && x->offset == y->offset && x->strides == y->strides;
  });
}

std::vector<std::vector<const Shard*>> ByBuffer(const std::vector<Shard>& shards, size_t num_buffers) {
  std::vector<std::vector<const Shard*>> by_buffer(num_buffers);
  for (const Shard& shard : shards) by_buffer[static_cast<size_t>(shard.buffer)].push_back(&shard);
  return by_buffer;
}

// A new buffer takes over an old one that holds the same elements at the same places, and nothing else.
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
    const bool fits = program.new_buffers[i].elems <= old.elems && program.new_buffers[i].dtype == old.dtype;
    if (fits && SamePlaces(old_places[static_cast<size_t>(it->second)], new_places[i])) alias[i] = it->second;
  }
  return alias;
}

// Transfers of one direction as messages by round, one per peer.
class MessageBuilder {
 public:
  MessageBuilder(const Program& program, const std::vector<RankId>& ranks, bool sending)
      : shards_(sending ? program.old_shards : program.new_shards),
        buffers_(sending ? program.old_buffers : program.new_buffers),
        ranks_(ranks),
        self_(IndexOf(program.rank)) {}

  Status Add(const Transfer& transfer) {
    const int32_t peer = IndexOf(transfer.peer);
    if (peer < 0 || self_ < 0) {
      return InvalidArgument("rank {} is not among the {} ranks that take part",
                             self_ < 0 ? -1 - self_ : transfer.peer, ranks_.size());
    }
    const auto n = static_cast<int32_t>(ranks_.size());
    const int32_t round = RoundOf(self_, peer, n);
    Message& message = by_round_[round];
    message.peer = transfer.peer;
    message.round = round;
    DT_ASSIGN_OR_RETURN(const Region region, RegionOf(transfer.piece, shards_, buffers_));
    message.bytes += region.bytes();
    message.fragments.push_back({transfer.piece, region});
    return Status::Ok();
  }

  Result<std::vector<Message>> Finish(int32_t phase) {
    std::vector<Message> messages;
    const int64_t rounds = NumRounds(static_cast<int32_t>(ranks_.size()));
    for (auto& [round, message] : by_round_) {
      const int64_t tag = (phase * rounds + round) * kTagsPerMessage;
      if (tag + kTagsPerMessage > INT32_MAX) {
        return InvalidArgument("{} phases of {} rounds need more tags than 2^31", phase + 1, rounds);
      }
      message.tag = static_cast<transport::Tag>(tag);
      message.in_place = IsOneRun(message.fragments);
      messages.push_back(std::move(message));
    }
    return messages;
  }

 private:
  int32_t IndexOf(RankId rank) const {
    const auto it = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
    if (it == ranks_.end() || *it != rank) return -1 - rank;
    return static_cast<int32_t>(it - ranks_.begin());
  }

  static bool IsOneRun(const std::vector<Fragment>& fragments) {
    const Region& first = fragments.front().region;
    int64_t next = first.offset;
    for (const Fragment& fragment : fragments) {
      const Region& region = fragment.region;
      if (region.buffer != first.buffer || region.offset != next || !IsDense(region)) return false;
      next += vps::ElemCount(region.extent);
    }
    return true;
  }

  const std::vector<Shard>& shards_;
  const std::vector<Buffer>& buffers_;
  const std::vector<RankId>& ranks_;
  const int32_t self_;
  std::map<int32_t, Message> by_round_;
};

Result<std::vector<Message>> BuildMessages(const Program& program, const std::vector<Transfer>& transfers,
                                           const std::vector<RankId>& ranks, bool sending) {
  MessageBuilder builder(program, ranks, sending);
  for (const Transfer& transfer : transfers) DT_RETURN_IF_ERROR(builder.Add(transfer));
  return builder.Finish(0);
}

Status BuildCopies(const Route& route, Program* program, Phase* phase) {
  for (const Piece& piece : route.keeps) {
    DT_ASSIGN_OR_RETURN(const Region to, RegionOf(piece, program->new_shards, program->new_buffers));
    if (program->alias[static_cast<size_t>(to.buffer)] >= 0) {
      program->stats.aliased_bytes += to.bytes();
      continue;
    }
    DT_ASSIGN_OR_RETURN(const Region from, RegionOf(piece, program->old_shards, program->old_buffers));
    phase->copies.push_back({piece, from, to});
  }
  return Status::Ok();
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

ByteCount TotalBytes(const std::vector<Buffer>& buffers) {
  ByteCount total = 0;
  for (const Buffer& buffer : buffers) total += buffer.bytes();
  return total;
}

ByteCount StagingBytes(const Program& program) {
  std::map<std::pair<bool, int32_t>, ByteCount> slots;
  for (const Action& action : ActionsOf(program)) {
    const bool send = action.kind == Action::Kind::kPostSend;
    if (!send && action.kind != Action::Kind::kPostReceive) continue;
    const Phase& phase = program.phases[static_cast<size_t>(action.phase)];
    const Message& message = (send ? phase.sends : phase.receives)[static_cast<size_t>(action.index)];
    ByteCount& slot = slots[{send, action.slot}];
    if (!message.in_place) slot = std::max(slot, message.bytes);
  }
  ByteCount total = 0;
  for (const auto& [slot, bytes] : slots) total += bytes;
  return total;
}

void FillStats(const Route& route, Program* program) {
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
  for (size_t i = 0; i < program->new_buffers.size(); ++i) {
    if (program->alias[i] < 0) stats.new_state_bytes += program->new_buffers[i].bytes();
  }
  stats.staging_bytes = StagingBytes(*program);
  const ByteCount old_bytes = TotalBytes(program->old_buffers);
  const ByteCount new_bytes = TotalBytes(program->new_buffers);
  stats.peak_extra_bytes =
      old_bytes + stats.new_state_bytes + stats.staging_bytes - std::max(old_bytes, new_bytes);
}

void NameTensors(const Route& route, const vps::StateCatalog& catalog, Program* program) {
  std::set<vps::TensorId> moving;
  for (const Transfer& transfer : route.sends) moving.insert(transfer.piece.tensor);
  for (const Transfer& transfer : route.receives) moving.insert(transfer.piece.tensor);
  for (const vps::TensorId id : moving) program->tensor_names.emplace_back(id, catalog.NameOf(id));
}

}  // namespace

Result<Region> RegionOf(const Piece& piece, const std::vector<Shard>& shards,
                        const std::vector<Buffer>& buffers) {
  auto it = std::lower_bound(shards.begin(), shards.end(), piece.tensor,
                             [](const Shard& shard, vps::TensorId tensor) { return shard.tensor < tensor; });
  for (; it != shards.end() && it->tensor == piece.tensor; ++it) {
    if (!it->box.Contains(piece.box)) continue;
    int64_t offset = it->offset;
    for (int axis = 0; axis < piece.box.dims(); ++axis) {
      offset += (piece.box.lo()[axis] - it->box.lo()[axis]) * it->strides[axis];
    }
    const ByteCount elem_bytes = vps::ElemBytes(buffers[static_cast<size_t>(it->buffer)].dtype);
    return Region{it->buffer, offset, piece.box.shape(), it->strides, static_cast<int32_t>(elem_bytes)};
  }
  return Internal("tensor {}: no shard holds the piece {} whole", piece.tensor, piece.box.ToString());
}

std::vector<RankId> PeersOf(const Program& program) {
  std::set<RankId> peers;
  for (const Phase& phase : program.phases) {
    for (const Message& message : phase.receives) peers.insert(message.peer);
    for (const Message& message : phase.sends) peers.insert(message.peer);
  }
  return {peers.begin(), peers.end()};
}

Result<Program> Compile(const Route& route, const ShardMap& from, const ShardMap& to,
                        const planner::Topology& topology, const std::vector<RankId>& ranks) {
  if (!std::is_sorted(ranks.begin(), ranks.end()) ||
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return InvalidArgument("the ranks that take part must ascend without repeating");
  }
  Program program;
  program.rank = route.rank;
  program.old_shards = from.ShardsOf(route.rank);
  program.new_shards = to.ShardsOf(route.rank);
  program.old_buffers = from.BuffersOf(route.rank);
  program.new_buffers = to.BuffersOf(route.rank);
  program.alias = FindAliases(program);
  Phase phase;
  DT_ASSIGN_OR_RETURN(phase.receives, BuildMessages(program, route.receives, ranks, /*sending=*/false));
  DT_ASSIGN_OR_RETURN(phase.sends, BuildMessages(program, route.sends, ranks, /*sending=*/true));
  DT_RETURN_IF_ERROR(BuildCopies(route, &program, &phase));
  program.phases.push_back(std::move(phase));
  FillStats(route, &program);
  NameTensors(route, to.catalog(), &program);
  Hasher inputs;
  inputs.Add(kProgramVersion).Add(from.Fingerprint()).Add(to.Fingerprint()).Add(topology.Fingerprint());
  inputs.Add(ranks.size());
  for (const RankId rank : ranks) inputs.Add(rank);
  program.inputs_fingerprint = inputs.Add(program.window).Add(program.chunk_bytes).hash();
  return program;
}

}  // namespace dynatrain::engine
