#include "dynatrain/engine/memory_plan.h"

#include <algorithm>

namespace dynatrain::engine {
namespace {

using vps::Buffer;
using vps::BufferIndex;

// A phase number for each granule of each buffer.
class GranuleTable {
 public:
  GranuleTable(const std::vector<Buffer>& buffers, ByteCount granule, int32_t initial)
      : granule_(granule) {
    for (const Buffer& buffer : buffers) {
      bytes_.push_back(MemoryBytes(buffer));
      phase_of_.emplace_back(static_cast<size_t>((bytes_.back() + granule - 1) / granule), initial);
    }
  }

  // update(&phase) for every granule that the region may touch.
  template <class Update>
  void Touch(const Region& region, const Update& update) {
    Touch(region, 0, region.offset, update);
  }

  // Calls visit(phase, range) for the granules of a buffer, neighbours of equal phase as one range;
  // what is less than a granule at its end is a range of its own.
  template <class Visit>
  void ForEachRange(BufferIndex buffer, const Visit& visit) const {
    const std::vector<int32_t>& phases = phase_of_[static_cast<size_t>(buffer)];
    const ByteCount bytes = bytes_[static_cast<size_t>(buffer)];
    const auto whole = static_cast<size_t>(bytes / granule_);
    for (size_t begin = 0; begin < phases.size();) {
      size_t end = begin + 1;
      while (end < whole && phases[end] == phases[begin]) ++end;
      const auto first = static_cast<ByteCount>(begin) * granule_;
      const auto last = std::min(static_cast<ByteCount>(end) * granule_, bytes);
      visit(phases[begin], MemoryRange{buffer, first, last - first});
      begin = end;
    }
  }

 private:
  // Axes from `axis` on, at element `offset`. Axes that step by less than a granule touch all
  // granules between.
  template <class Update>
  void Touch(const Region& region, int axis, int64_t offset, const Update& update) {
    int64_t largest = 0;
    int64_t last = offset;
    for (int a = axis; a < region.extent.dims(); ++a) {
      if (region.extent[a] > 1) largest = std::max(largest, region.strides[a] * region.elem_bytes);
      last += (region.extent[a] - 1) * region.strides[a];
    }
    if (largest <= granule_ || axis == region.extent.dims()) {
      std::vector<int32_t>& phases = phase_of_[static_cast<size_t>(region.buffer)];
      const ByteCount begin = offset * region.elem_bytes / granule_;
      const ByteCount end = ((last + 1) * region.elem_bytes - 1) / granule_;
      for (ByteCount g = begin; g <= end; ++g) update(&phases[static_cast<size_t>(g)]);
      return;
    }
    for (int64_t i = 0; i < region.extent[axis]; ++i) {
      Touch(region, axis + 1, offset + i * region.strides[axis], update);
    }
  }

  const ByteCount granule_;
  std::vector<ByteCount> bytes_;
  std::vector<std::vector<int32_t>> phase_of_;
};

// Makes new memory of old memory where a phase takes what has just become free: granules of whole
// ones, and tails, which are not of huge pages, of tails.
class MovePlan {
 public:
  MovePlan(ByteCount granule, Phase* phase) : granule_(granule), phase_(phase) {}

  void Reuse(std::vector<MemoryRange>* free) {
    for (const bool tails : {false, true}) {
      size_t from = 0;
      size_t to = 0;
      while (Find(*free, tails, &from) && Find(phase_->takes, tails, &to)) {
        MemoryRange& old_range = (*free)[from];
        MemoryRange& new_range = phase_->takes[to];
        const ByteCount bytes = std::min(old_range.bytes, new_range.bytes);
        phase_->moves.push_back({CutFront(&old_range, bytes), CutFront(&new_range, bytes)});
      }
    }
    for (std::vector<MemoryRange>* ranges : {free, &phase_->takes})
      std::erase_if(*ranges, [](const MemoryRange& range) { return range.bytes == 0; });
  }

 private:
  // Goes on to the next range of its kind that has bytes left.
  bool Find(const std::vector<MemoryRange>& ranges, bool tails, size_t* at) const {
    const auto fits = [&](const MemoryRange& range) {
      return range.bytes > 0 && (range.bytes < granule_) == tails;
    };
    while (*at < ranges.size() && !fits(ranges[*at])) ++*at;
    return *at < ranges.size();
  }

  static MemoryRange CutFront(MemoryRange* range, ByteCount bytes) {
    const MemoryRange front{range->buffer, range->begin, bytes};
    range->begin += bytes;
    range->bytes -= bytes;
    return front;
  }

  const ByteCount granule_;
  Phase* const phase_;
};

ByteCount Sum(const std::vector<MemoryRange>& ranges) {
  ByteCount bytes = 0;
  for (const MemoryRange& range : ranges) bytes += range.bytes;
  return bytes;
}

ByteCount PeakOf(const Program& program) {
  ByteCount now = MemoryBytes(program.old_buffers);
  ByteCount peak = now;
  for (const Phase& phase : program.phases) {
    now += Sum(phase.takes) - Sum(phase.drops);
    peak = std::max(peak, now);
    now -= Sum(phase.releases);
  }
  return peak;
}

}  // namespace

ByteCount MemoryBytes(const Buffer& buffer) {
  return (buffer.bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
}

ByteCount MemoryBytes(const std::vector<Buffer>& buffers) {
  ByteCount total = 0;
  for (const Buffer& buffer : buffers) total += MemoryBytes(buffer);
  return total;
}

ByteCount PlanMemory(ByteCount granule_bytes, Program* program) {
  const auto phases = static_cast<int32_t>(program->phases.size());
  GranuleTable last_read(program->old_buffers, granule_bytes, -1);
  GranuleTable first_write(program->new_buffers, granule_bytes, phases - 1);
  for (int32_t p = 0; p < phases; ++p) {
    const Phase& phase = program->phases[static_cast<size_t>(p)];
    const auto later = [p](int32_t* known) { *known = std::max(*known, p); };
    const auto earlier = [p](int32_t* known) { *known = std::min(*known, p); };
    for (const Message& message : phase.sends) {
      if (message.relayed) continue;  // from new memory, which stays
      for (const Fragment& fragment : message.fragments) last_read.Touch(fragment.region, later);
    }
    for (const Message& message : phase.receives) {
      for (const Fragment& fragment : message.fragments)
        first_write.Touch(fragment.region, earlier);
    }
    for (const LocalCopy& copy : phase.copies) {
      last_read.Touch(copy.from, later);
      first_write.Touch(copy.to, earlier);
    }
  }
  std::vector<bool> taken_over(program->old_buffers.size(), false);
  for (size_t i = 0; i < program->new_buffers.size(); ++i) {
    if (program->alias[i] >= 0) {
      taken_over[static_cast<size_t>(program->alias[i])] = true;
      continue;
    }
    first_write.ForEachRange(static_cast<BufferIndex>(i), [&](int32_t p, const MemoryRange& range) {
      program->phases[static_cast<size_t>(p)].takes.push_back(range);
    });
  }
  for (size_t i = 0; i < program->old_buffers.size(); ++i) {
    if (taken_over[i]) continue;
    last_read.ForEachRange(static_cast<BufferIndex>(i), [&](int32_t p, const MemoryRange& range) {
      Phase& phase = program->phases[static_cast<size_t>(std::max(p, 0))];
      (p < 0 ? phase.drops : phase.releases).push_back(range);
    });
  }
  const ByteCount peak = PeakOf(*program);
  for (size_t p = 0; p < program->phases.size(); ++p) {
    MovePlan moves(granule_bytes, &program->phases[p]);
    if (p > 0) moves.Reuse(&program->phases[p - 1].releases);
    moves.Reuse(&program->phases[p].drops);
  }
  return peak;
}

}  // namespace dynatrain::engine
