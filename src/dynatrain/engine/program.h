// Program: the ordered, buffer-assigned form of one rank's route — when each message goes, from and
// into which memory. Stated before anything runs: bytes, messages, peak extra memory. Executed by
// engine/executor.h.
//
// Phases hold memory down, rounds pair ranks. In every round each rank has at most one peer (a
// matching, see order.h). An operation waits only for operations of smaller (phase, round) at both
// ends, which is why no cycle of waits can form. What is relayed inside a node goes in a last pass
// of the phase, once everything before it has been received.
//
// Phase k of K holds run k of each class of pieces, which all have the same old and the same new
// holders: on every rank what comes in and what goes are in step (phases.h). Every holder of a piece
// knows its class whole, so all ranks agree on it without talking.
#ifndef DYNATRAIN_ENGINE_PROGRAM_H_
#define DYNATRAIN_ENGINE_PROGRAM_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/planner/route.h"
#include "dynatrain/transport/transport.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::engine {

// A strided region of a state buffer; extents and strides in elements of elem_bytes.
struct Region {
  vps::BufferIndex buffer;
  int64_t offset;  // elements from the buffer's start
  vps::Coords extent;
  vps::Coords strides;
  int32_t elem_bytes;
  ByteCount bytes() const { return vps::ElemCount(extent) * elem_bytes; }
  friend bool operator==(const Region&, const Region&) = default;
};

// A piece in memory: `region` is in the old buffers for a send (the new ones if it is relayed), in
// the new ones for a receive.
struct Fragment {
  planner::Piece piece;
  Region region;
};

// Fragments of a message that lie one behind the other in memory: in a state buffer, or in staging
// memory. Long fragments make runs of their own, short ones are gathered, by their bytes alone: so
// both ends of a message have runs of equal bytes, and long dense regions are neither packed nor
// unpacked.
struct Run {
  int32_t first = 0;  // of the message's fragments
  int32_t count = 0;
  ByteCount bytes = 0;
  bool in_place = false;        // one dense run of a state buffer: sent from or received into it
  ByteCount staging_begin = 0;  // else where it lies in the message's staging memory
};

// All fragments that go between one pair in one direction and phase, as one run of bytes: fragments
// in piece order, each in logical row-major order, nothing between them.
struct Message {
  RankId peer;
  int32_t round;
  transport::Tag tag;
  ByteCount bytes;
  std::vector<Fragment> fragments;
  std::vector<Run> runs;        // all fragments, in order
  ByteCount staging_bytes = 0;  // of the runs that are not in place
  // Second hop inside a node: sent from the new buffers, where earlier rounds of the phase have put
  // it.
  bool relayed = false;
};

struct LocalCopy {
  planner::Piece piece;
  Region from;  // in the old buffers
  Region to;    // in the new buffers
};

// A part of this rank's copy of a tied tensor: one of `holders` copies in the old state, the
// `holder`-th, which must all have the same bits (ties.h).
struct TiedPart {
  planner::Piece piece;
  Region region;  // in the old buffers
  int64_t holder;
  int64_t holders;
};

// How long the old state stays.
enum class Mode : uint8_t {
  kKeep,   // until the switch is decided: a roll-back finds it bit for bit
  kStream  // until each phase is acknowledged by everybody who needed it: little extra memory, no
           // way back
};
Result<Mode> ParseMode(std::string_view name);  // "keep", "stream"

// Whole granules of a buffer's memory, in bytes from its start; the last one ends with the buffer's
// last page.
struct MemoryRange {
  vps::BufferIndex buffer;
  ByteCount begin;
  ByteCount bytes;
  friend bool operator==(const MemoryRange&, const MemoryRange&) = default;
};

// Old memory that becomes new memory as it is.
struct MemoryMove {
  MemoryRange from;  // old
  MemoryRange to;    // new, of as many bytes
  friend bool operator==(const MemoryMove&, const MemoryMove&) = default;
};

struct Phase {
  std::vector<Message> receives;  // by round
  std::vector<Message> sends;     // by round
  std::vector<LocalCopy> copies;
  // kStream only: old memory that nobody needs any more before the phase, new memory that it writes
  // first, and old memory that can go when everything that was sent is acknowledged. What the phase
  // before lets go and this one drops becomes what it takes where it can: that is in `moves` alone.
  std::vector<MemoryRange> drops;
  std::vector<MemoryMove> moves;
  std::vector<MemoryRange> takes;
  std::vector<MemoryRange> releases;
};

struct ProgramStats {
  ByteCount kept_bytes = 0;  // already here; aliased_bytes of them without a copy
  ByteCount aliased_bytes = 0;
  ByteCount sent_bytes = 0;
  ByteCount received_bytes = 0;   // the sum over ranks is moved_bytes
  int64_t messages = 0;           // sent
  ByteCount staging_bytes = 0;    // send and receive buffers held at once, at most
  ByteCount new_state_bytes = 0;  // fresh memory of the new layout
  // The program itself, its actions and its checks; of the transport, for what is in flight.
  ByteCount bookkeeping_bytes = 0;
  ByteCount transport_bytes = 0;
  ByteCount heap_bytes = 0;  // freed memory that the process keeps; 0 if there are no messages
  // Above max(old, new) state of this rank, of all the above together, in whole pages; kStream:
  // state is counted in granules.
  ByteCount peak_extra_bytes = 0;
};

inline constexpr int32_t kDefaultWindow = 32;
// Most for a program of several phases, which there are because memory is short: messages of one
// phase wait in staging memory beside those of the next.
inline constexpr int32_t kWindowOfPhases = 16;
inline constexpr ByteCount kDefaultChunkBytes = ByteCount{4} << 20;
// Fragments from this size on are runs of their own.
inline constexpr ByteCount kLongFragmentBytes = ByteCount{512} << 10;
inline constexpr ByteCount kDefaultGranuleBytes = ByteCount{2} << 20;
inline constexpr ByteCount kDefaultTransportBytes = ByteCount{12} << 10;
// glibc gives memory that was freed back from 128 KiB on (M_TRIM_THRESHOLD); the thread that switches
// and the transport's own each have a heap.
inline constexpr ByteCount kDefaultHeapBytes = 2 * (ByteCount{128} << 10);

// Equal on all ranks of a switch.
struct CompileOptions {
  Mode mode = Mode::kKeep;
  int32_t phases = 1;
  int32_t window = kDefaultWindow;  // of a program; at most kWindowOfPhases if phases > 1
  ByteCount chunk_bytes = kDefaultChunkBytes;
  ByteCount granule_bytes = kDefaultGranuleBytes;  // a multiple of 4096
  // Memory of its own that the transport takes for an operation in flight: at most this much, and
  // no more than the operation's own bytes and a page.
  ByteCount transport_bytes = kDefaultTransportBytes;
  // Freed memory that the process keeps: what is allocated and freed for messages leaves that much.
  ByteCount heap_bytes = kDefaultHeapBytes;
};

struct Program {
  RankId rank = 0;
  std::vector<Phase> phases;
  // For each new buffer: the old buffer whose storage it takes over whole (same shards at the same
  // offsets), or -1.
  std::vector<vps::BufferIndex> alias;
  ProgramStats stats;
  // Where the pieces lie by the shard maps alone: what checks look at, whatever the fragments say.
  std::vector<vps::Shard> old_shards;
  std::vector<vps::Shard> new_shards;
  std::vector<vps::Buffer> old_buffers;
  std::vector<vps::Buffer> new_buffers;
  std::vector<TiedPart> ties;
  // Names of the tensors that move or are tied, ascending by id; for errors.
  std::vector<std::pair<vps::TensorId, std::string>> tensor_names;
  Mode mode = Mode::kKeep;
  int32_t window = kDefaultWindow;             // messages in flight per direction
  ByteCount chunk_bytes = kDefaultChunkBytes;  // longer messages are cut; equal on all ranks
  // Hash of all inputs; equal on all ranks of a switch.
  uint64_t inputs_fingerprint = 0;
  // Sum over this rank's sends of h(message) minus the sum over its receives, mod 2^64; the sum
  // over all ranks is 0.
  uint64_t message_balance = 0;
};

// `ranks`: everybody who takes part (old and new ranks, ascending), the same list on every rank;
// fixes the rounds. Pure.
Result<Program> Compile(const planner::Route& route, const vps::ShardMap& from,
                        const vps::ShardMap& to, const planner::Topology& topology,
                        const std::vector<RankId>& ranks, const CompileOptions& options = {});

// The peers of a program's messages, ascending: the pairs of a transport that are worth warming up.
std::vector<RankId> PeersOf(const Program& program);

// By tensor_names; "#7" if it is not among them.
std::string NameOf(const Program& program, vps::TensorId tensor);

// Where a piece lies by the shards of its rank, ordered by (tensor, box) as ShardMap::ShardsOf
// gives them. kInternal, naming tensor and box, if it lies in none of them whole.
Result<Region> RegionOf(const planner::Piece& piece, const std::vector<vps::Shard>& shards,
                        const std::vector<vps::Buffer>& buffers);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_PROGRAM_H_
