// Placement: where the parameters of a catalog lie in the flat buffers of a layout. Private to vps.
//
// A layout has two grids over the same positions: the dense one (stage, tp, and dp x cp positions
// that hold the same) and the experts' one (stage, ep x etp, and edp positions). In each, a part of
// a stage has buckets, runs of the stage's list of parameters, with an offset for every parameter.
// All is computed once, in time and memory proportional to parameters x parts that hold them.
// Immutable; any thread may read.
#ifndef DYNATRAIN_VPS_PLACEMENT_H_
#define DYNATRAIN_VPS_PLACEMENT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dynatrain/vps/box.h"
#include "dynatrain/vps/catalog.h"
#include "dynatrain/vps/layout.h"
#include "dynatrain/vps/local_tensor.h"
#include "dynatrain/vps/shard_map.h"

namespace dynatrain::vps {

// One of the two grids: every position is (stage, part, slice). Slices hold the same parameters and
// cut what ZeRO cuts.
class Grid {
 public:
  struct Place {
    int32_t stage;
    int32_t part;
    int32_t slice;
  };
  static Grid Dense(const Layout& layout);
  static Grid OfExperts(const Layout& layout);

  const PartGrid& parts() const { return parts_; }
  int32_t slices() const { return slices_; }
  Place PlaceAt(int32_t position) const;
  // Position of (stage, part, slice 0), and what a slice adds to it.
  int64_t BaseOf(int32_t stage, int32_t part) const;
  int64_t OffsetOfSlice(int64_t slice) const;
  const std::vector<HolderSet::Range>& slice_ranges() const { return slice_ranges_; }

 private:
  PartGrid parts_;
  int32_t slices_ = 1;
  int32_t stages_ = 1;
  int64_t stage_stride_ = 0;
  int64_t split_stride_ = 0;
  int64_t expert_stride_ = 0;
  std::vector<HolderSet::Range> slice_ranges_;  // from the smallest stride up
};

class Placement {
 public:
  enum GridIndex { kDense = 0, kExperts = 1 };
  struct Item {
    ParameterId parameter;
    Home home;             // the first of its homes on the stage
    int32_t chunk;         // of that home
    int32_t buffer_class;  // parameters of different classes never share a bucket
  };
  struct Run {  // a bucket: items [begin, end) of the list
    int32_t begin = 0;
    int32_t end = 0;
    int64_t real_elems = 0;
    int64_t elems = 0;
  };
  struct Part {  // one part of one stage
    std::vector<Run> runs;
    std::vector<int32_t> run_of;   // by item
    std::vector<int64_t> offsets;  // by item, elements from the start of its run
  };
  struct Site {  // a parameter on a stage, in the list of an expert group (0 in the dense grid)
    int32_t stage;
    int32_t expert_group;
    int32_t item;
  };

  // `catalog` must outlive the placement. Precondition: the layout fits the catalog.
  Placement(const StateCatalog& catalog, const Layout& layout);

  const Grid& grid(GridIndex index) const { return grids_[index]; }
  GridIndex GridOf(ParameterId parameter) const;
  // The parameters of a part, in buffer order.
  const std::vector<Item>& ItemsOf(GridIndex grid, int32_t stage, int32_t part) const;
  const Part& PartOf(GridIndex grid, int32_t stage, int32_t part) const {
    return parts_[grid][static_cast<size_t>(stage * grids_[grid].parts().parts() + part)];
  }
  // Where the parameter lies, by ascending stage, then expert group.
  std::span<const Site> SitesOf(ParameterId parameter) const {
    return sites_[static_cast<size_t>(parameter)];
  }
  std::string NameOf(GridIndex grid, int32_t stage, int32_t part, int32_t run) const;
  bool Trainable(const Item& item) const {
    return classes_[static_cast<size_t>(item.buffer_class)].trainable;
  }

 private:
  struct BufferClass {
    bool trainable = true;
    bool experts = false;
    std::optional<DType> dtype;  // of kind param
    std::string suffix;          // of bucket names
    friend bool operator==(const BufferClass&, const BufferClass&) = default;
  };
  std::vector<int32_t> ClassifyParameters();
  void PlaceItems();
  void SortItems();
  Part MakePart(GridIndex grid, int32_t stage, int32_t part) const;
  bool ClosesRun(const Item& last, const Item& next, int64_t real_elems) const;
  int64_t StartAlignment() const;
  int64_t RunElems(GridIndex grid, int32_t part, const Item& last, int64_t real_elems) const;
  bool IsTied(const Item& item) const;
  const Parameter& ParameterOf(const Item& item) const {
    return catalog_.parameters()[static_cast<size_t>(item.parameter)];
  }

  const StateCatalog& catalog_;
  Layout layout_;
  std::array<Grid, 2> grids_;
  std::vector<BufferClass> classes_;
  std::array<std::vector<std::vector<Item>>, 2> items_;  // by stage, then expert group
  std::array<std::vector<Part>, 2> parts_;               // by stage, then part
  std::vector<std::vector<Site>> sites_;                 // by parameter
};

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_PLACEMENT_H_
