#include <algorithm>

#include "dynatrain/vps/placement.h"

namespace dynatrain::vps {

Grid Grid::Dense(const Layout& layout) {
  Grid grid;
  grid.parts_ = {.split_degree = layout.tp, .expert_degree = 1};
  grid.slices_ = layout.dp * layout.cp;
  grid.stages_ = layout.pp;
  grid.stage_stride_ = layout.Stride("pp");
  grid.split_stride_ = layout.Stride("tp");
  grid.slice_ranges_ = {{layout.Stride("dp"), layout.dp}, {layout.Stride("cp"), layout.cp}};
  std::sort(grid.slice_ranges_.begin(), grid.slice_ranges_.end());
  return grid;
}

Grid Grid::OfExperts(const Layout& layout) {
  Grid grid;
  grid.parts_ = {.split_degree = layout.etp, .expert_degree = layout.ep};
  grid.slices_ = layout.edp();
  grid.stages_ = layout.pp;
  grid.stage_stride_ = layout.ExpertStride("pp");
  grid.split_stride_ = layout.ExpertStride("etp");
  grid.expert_stride_ = layout.ExpertStride("ep");
  if (layout.EdpIsTheStage()) {
    const int64_t inner = grid.stage_stride_;
    grid.slice_ranges_ = {{1, inner}, {inner * layout.pp, grid.slices_ / inner}};
  } else {
    grid.slice_ranges_ = {{layout.ExpertStride("edp"), layout.edp()}};
  }
  return grid;
}

Grid::Place Grid::PlaceAt(int32_t position) const {
  const auto digit = [position](int64_t stride, int64_t count) {
    return position / stride % count;
  };
  const int64_t split = digit(split_stride_, parts_.split_degree);
  const int64_t expert =
      parts_.expert_degree == 1 ? 0 : digit(expert_stride_, parts_.expert_degree);
  int64_t slice = 0;
  int64_t weight = 1;
  for (const HolderSet::Range& range : slice_ranges_) {
    slice += weight * digit(range.stride, range.count);
    weight *= range.count;
  }
  return {.stage = static_cast<int32_t>(digit(stage_stride_, stages_)),
          .part = static_cast<int32_t>(expert * parts_.split_degree + split),
          .slice = static_cast<int32_t>(slice)};
}

int64_t Grid::BaseOf(int32_t stage, int32_t part) const {
  return stage * stage_stride_ + part % parts_.split_degree * split_stride_ +
         part / parts_.split_degree * expert_stride_;
}

int64_t Grid::OffsetOfSlice(int64_t slice) const {
  int64_t offset = 0;
  for (const HolderSet::Range& range : slice_ranges_) {
    offset += slice % range.count * range.stride;
    slice /= range.count;
  }
  return offset;
}

}  // namespace dynatrain::vps
