#include "dynatrain/vps/placement.h"

#include <algorithm>
#include <numeric>

namespace dynatrain::vps {

namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int32_t StageOfHome(const Home& home, const Layout& layout, int32_t num_layers) {
  switch (home.place) {
    case Home::Place::kEmbedding:
      return 0;
    case Home::Place::kLayer:
      return layout.StageOfLayer(home.layer, num_layers);
    case Home::Place::kHead:
      return layout.pp - 1;
  }
  DT_CHECK_MSG(false, "unknown place");
}

std::string NameOfHome(const Home& home) {
  switch (home.place) {
    case Home::Place::kEmbedding:
      return "embedding";
    case Home::Place::kLayer:
      return fmt::format("layers.{}", home.layer);
    case Home::Place::kHead:
      return "head";
  }
  DT_CHECK_MSG(false, "unknown place");
}

}  // namespace

Box TensorParallelBox(const Parameter& parameter, int32_t tp_degree, int32_t tp) {
  Coords lo = Coords::Filled(parameter.shape.dims(), 0);
  Coords hi = parameter.shape;
  if (const int axis = parameter.split.axis; axis >= 0) {
    const AxisRange range = SplitAxis(parameter.split, parameter.shape[axis], tp_degree, tp);
    lo[axis] = range.begin;
    hi[axis] = range.end;
  }
  return {lo, hi};
}

Placement::Placement(const StateCatalog& catalog, const Layout& layout)
    : catalog_(catalog), tp_(layout.tp), rule_(layout.buffer) {
  PlaceItems(layout);
  parts_.reserve(static_cast<size_t>(layout.pp) * static_cast<size_t>(layout.tp));
  for (int32_t stage = 0; stage < layout.pp; ++stage) {
    for (int32_t tp = 0; tp < layout.tp; ++tp) parts_.push_back(MakePart(layout, stage, tp));
  }
}

// The class of each parameter. Trainable classes come first, each in the order of the catalog.
std::vector<int32_t> Placement::ClassifyParameters() {
  std::vector<BufferClass> keys;
  for (const Parameter& p : catalog_.parameters()) {
    BufferClass key{
        .trainable = p.trainable, .dtype = std::nullopt, .suffix = p.trainable ? "" : ".frozen"};
    for (const KindSpec& spec : p.kinds) {
      if (spec.kind == Kind::kParam) key.dtype = spec.dtype;
    }
    if (key.dtype && !keys.empty() && key.dtype != keys.front().dtype) {
      key.suffix += fmt::format(".{}", DTypeName(*key.dtype));
    }
    keys.push_back(key);
    if (std::find(classes_.begin(), classes_.end(), key) == classes_.end()) classes_.push_back(key);
  }
  std::stable_partition(classes_.begin(), classes_.end(),
                        [](const BufferClass& c) { return c.trainable; });
  std::vector<int32_t> class_of;
  for (const BufferClass& key : keys) {
    class_of.push_back(
        static_cast<int32_t>(std::find(classes_.begin(), classes_.end(), key) - classes_.begin()));
  }
  return class_of;
}

void Placement::PlaceItems(const Layout& layout) {
  const std::vector<int32_t> class_of = ClassifyParameters();
  items_.resize(static_cast<size_t>(layout.pp));
  sites_.resize(catalog_.parameters().size());
  for (size_t p = 0; p < catalog_.parameters().size(); ++p) {
    std::vector<Home> homes = catalog_.parameters()[p].homes;
    std::sort(homes.begin(), homes.end());
    int32_t last_stage = -1;
    for (const Home& home : homes) {
      const int32_t stage = StageOfHome(home, layout, catalog_.num_layers());
      if (stage == last_stage) continue;
      last_stage = stage;
      items_[static_cast<size_t>(stage)].push_back(
          {static_cast<ParameterId>(p), home, class_of[p]});
    }
  }
  const bool reverse = rule_.order == BufferRule::Order::kReverse;
  for (int32_t stage = 0; stage < layout.pp; ++stage) {
    std::vector<Item>& items = items_[static_cast<size_t>(stage)];
    std::stable_sort(items.begin(), items.end(),
                     [](const Item& a, const Item& b) { return a.home < b.home; });
    if (reverse) std::reverse(items.begin(), items.end());
    std::stable_sort(items.begin(), items.end(),
                     [](const Item& a, const Item& b) { return a.buffer_class < b.buffer_class; });
    for (size_t i = 0; i < items.size(); ++i) {
      sites_[static_cast<size_t>(items[i].parameter)].push_back({stage, static_cast<int32_t>(i)});
    }
  }
}

bool Placement::ClosesRun(const Item& last, const Item& next, int64_t real_elems) const {
  if (last.buffer_class != next.buffer_class) return true;
  switch (rule_.cut) {
    case BufferRule::Cut::kContiguous:
      return false;
    case BufferRule::Cut::kBucketed:
      return last.home != next.home;
    case BufferRule::Cut::kBucketedElems:
      return real_elems >= rule_.bucket_elems;
  }
  DT_CHECK_MSG(false, "unknown cut");
}

Placement::Part Placement::MakePart(const Layout& layout, int32_t stage, int32_t tp) const {
  const std::vector<Item>& items = ItemsOf(stage);
  const int64_t end_alignment =
      layout.zero == 0 ? rule_.end_alignment
                       : std::lcm(rule_.end_alignment, rule_.end_alignment_per_dp * layout.dp);
  Part part;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i == 0 || ClosesRun(items[i - 1], items[i], part.runs.back().real_elems)) {
      part.runs.push_back({.begin = static_cast<int32_t>(i)});
    }
    Run& run = part.runs.back();
    const int64_t elems =
        TensorParallelBox(catalog_.parameters()[static_cast<size_t>(items[i].parameter)], tp_, tp)
            .elems();
    const int64_t offset =
        elems == 0 ? run.real_elems : RoundUp(run.real_elems, rule_.start_alignment);
    part.run_of.push_back(static_cast<int32_t>(part.runs.size()) - 1);
    part.offsets.push_back(offset);
    run.end = static_cast<int32_t>(i) + 1;
    run.real_elems = offset + elems;
    run.elems = RoundUp(run.real_elems, end_alignment);
  }
  return part;
}

std::string Placement::NameOf(int32_t stage, int32_t tp, int32_t run) const {
  const std::vector<Run>& runs = PartOf(stage, tp).runs;
  const auto item_of = [&](int32_t r) -> const Item& {
    return ItemsOf(stage)[static_cast<size_t>(runs[static_cast<size_t>(r)].begin)];
  };
  const Item& first = item_of(run);
  const std::string& suffix = classes_[static_cast<size_t>(first.buffer_class)].suffix;
  switch (rule_.cut) {
    case BufferRule::Cut::kContiguous:
      return "stage" + suffix;
    case BufferRule::Cut::kBucketed:
      return NameOfHome(first.home) + suffix;
    case BufferRule::Cut::kBucketedElems: {
      int32_t number = 0;  // among the runs of the same class
      while (number < run && item_of(run - number - 1).buffer_class == first.buffer_class) ++number;
      return fmt::format("bucket.{}{}", number, suffix);
    }
  }
  DT_CHECK_MSG(false, "unknown cut");
}

}  // namespace dynatrain::vps
