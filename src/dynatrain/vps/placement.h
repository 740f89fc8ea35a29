// Placement: where the parameters of a catalog lie in the flat buffers of a layout. Private to vps.
//
// Each stage lists its parameters in buffer order; each tensor-parallel position of the stage has
// buckets, runs of that list, with an offset for every parameter. Everything is computed once, in
// time and memory proportional to parameters x tp. Immutable; any thread may read.
#ifndef DYNATRAIN_VPS_PLACEMENT_H_
#define DYNATRAIN_VPS_PLACEMENT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dynatrain/vps/box.h"
#include "dynatrain/vps/catalog.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::vps {

// The box of `parameter` at tensor-parallel position `tp`.
Box TensorParallelBox(const Parameter& parameter, int32_t tp_degree, int32_t tp);

class Placement {
 public:
  struct Item {
    ParameterId parameter;
    Home home;             // the first of its homes on the stage
    int32_t buffer_class;  // parameters of different classes never share a bucket
  };
  struct Run {  // a bucket: items [begin, end) of the stage
    int32_t begin = 0;
    int32_t end = 0;
    int64_t real_elems = 0;
    int64_t elems = 0;
  };
  struct Part {  // one tensor-parallel position of one stage
    std::vector<Run> runs;
    std::vector<int32_t> run_of;   // by item
    std::vector<int64_t> offsets;  // by item, elements from the start of its run
  };
  struct Site {  // a parameter on a stage
    int32_t stage;
    int32_t item;
  };

  // `catalog` must outlive the placement. Precondition: the layout fits the catalog.
  Placement(const StateCatalog& catalog, const Layout& layout);

  const std::vector<Item>& ItemsOf(int32_t stage) const {
    return items_[static_cast<size_t>(stage)];
  }
  const Part& PartOf(int32_t stage, int32_t tp) const {
    return parts_[static_cast<size_t>(stage) * static_cast<size_t>(tp_) + static_cast<size_t>(tp)];
  }
  // Where the parameter lies, by ascending stage.
  std::span<const Site> SitesOf(ParameterId parameter) const {
    return sites_[static_cast<size_t>(parameter)];
  }
  // Name of the run `run` of (stage, tp).
  std::string NameOf(int32_t stage, int32_t tp, int32_t run) const;
  bool Trainable(const Item& item) const {
    return classes_[static_cast<size_t>(item.buffer_class)].trainable;
  }

 private:
  struct BufferClass {
    bool trainable = true;
    std::optional<DType> dtype;  // of kind param
    std::string suffix;          // of bucket names
    friend bool operator==(const BufferClass&, const BufferClass&) = default;
  };
  std::vector<int32_t> ClassifyParameters();
  void PlaceItems(const Layout& layout);
  Part MakePart(const Layout& layout, int32_t stage, int32_t tp) const;
  bool ClosesRun(const Item& last, const Item& next, int64_t real_elems) const;

  const StateCatalog& catalog_;
  int32_t tp_;
  BufferRule rule_;
  std::vector<BufferClass> classes_;
  std::vector<std::vector<Item>> items_;  // by stage
  std::vector<Part> parts_;               // by stage, then tp
  std::vector<std::vector<Site>> sites_;  // by parameter
};

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_PLACEMENT_H_
