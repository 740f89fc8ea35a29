#include "dynatrain/vps/placement.h"

#include <algorithm>
#include <numeric>

namespace dynatrain::vps {

namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int32_t ChunkOfHome(const Home& home, const Layout& layout, int32_t num_layers) {
  switch (home.place) {
    case Home::Place::kEmbedding:
      return 0;
    case Home::Place::kLayer:
      return layout.ChunkOfLayer(home.layer, num_layers);
    case Home::Place::kHead:
      return layout.num_chunks() - 1;
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

Placement::Placement(const StateCatalog& catalog, const Layout& layout)
    : catalog_(catalog), layout_(layout), grids_{Grid::Dense(layout), Grid::OfExperts(layout)} {
  PlaceItems();
  SortItems();
  for (const GridIndex grid : {kDense, kExperts}) {
    const int32_t parts = grids_[grid].parts().parts();
    for (int32_t stage = 0; stage < layout.pp; ++stage) {
      for (int32_t part = 0; part < parts; ++part) {
        parts_[grid].push_back(MakePart(grid, stage, part));
      }
    }
  }
}

Placement::GridIndex Placement::GridOf(ParameterId parameter) const {
  const bool experts =
      catalog_.parameters()[static_cast<size_t>(parameter)].experts && layout_.ExpertsHaveOwnGrid();
  return experts ? kExperts : kDense;
}

const std::vector<Placement::Item>& Placement::ItemsOf(GridIndex grid, int32_t stage,
                                                       int32_t part) const {
  const PartGrid& parts = grids_[grid].parts();
  return items_[grid][static_cast<size_t>(stage * parts.expert_degree + part / parts.split_degree)];
}

// The class of each parameter. Trainable classes come first, each in the order of the catalog.
std::vector<int32_t> Placement::ClassifyParameters() {
  std::vector<BufferClass> keys;
  for (size_t id = 0; id < catalog_.parameters().size(); ++id) {
    const Parameter& p = catalog_.parameters()[id];
    BufferClass key{.trainable = p.trainable,
                    .experts = GridOf(static_cast<ParameterId>(id)) == kExperts,
                    .dtype = std::nullopt,
                    .suffix = ""};
    for (const KindSpec& spec : p.kinds) {
      if (spec.kind == Kind::kParam) key.dtype = spec.dtype;
    }
    if (key.experts) key.suffix += ".experts";
    if (!key.trainable) key.suffix += ".frozen";
    if (key.dtype && !keys.empty() && key.dtype != keys.front().dtype) {
      key.suffix += fmt::format(".{}", DTypeName(*key.dtype));
    }
    keys.push_back(key);
    if (std::find(classes_.begin(), classes_.end(), key) == classes_.end()) {
      classes_.push_back(key);
    }
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

void Placement::PlaceItems() {
  const std::vector<int32_t> class_of = ClassifyParameters();
  for (const GridIndex grid : {kDense, kExperts}) {
    items_[grid].resize(static_cast<size_t>(layout_.pp * grids_[grid].parts().expert_degree));
  }
  for (size_t id = 0; id < catalog_.parameters().size(); ++id) {
    const Parameter& p = catalog_.parameters()[id];
    const GridIndex grid = GridOf(static_cast<ParameterId>(id));
    const PartGrid& parts = grids_[grid].parts();
    // A parameter without elements lies in no group; a stack lies in all.
    const AxisRange groups = ExpertGroupsOf(p, parts, Box::Whole(p.shape));
    std::vector<Home> homes = p.homes;
    std::sort(homes.begin(), homes.end());
    std::vector<int32_t> stages;
    for (const Home& home : homes) {
      const int32_t chunk = ChunkOfHome(home, layout_, catalog_.num_layers());
      const int32_t stage = chunk % layout_.pp;
      if (std::find(stages.begin(), stages.end(), stage) != stages.end()) continue;
      stages.push_back(stage);
      for (int64_t group = groups.begin; group < groups.end; ++group) {
        items_[grid][static_cast<size_t>(stage * parts.expert_degree + group)].push_back(
            {static_cast<ParameterId>(id), home, chunk, class_of[id]});
      }
    }
  }
}

void Placement::SortItems() {
  sites_.resize(catalog_.parameters().size());
  for (const GridIndex grid : {kDense, kExperts}) {
    const int32_t groups = grids_[grid].parts().expert_degree;
    for (size_t list = 0; list < items_[grid].size(); ++list) {
      std::vector<Item>& items = items_[grid][list];
      std::stable_sort(items.begin(), items.end(),
                       [](const Item& a, const Item& b) { return a.home < b.home; });
      if (layout_.buffer.order == BufferRule::Order::kReverse) {
        std::reverse(items.begin(), items.end());
      }
      std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return a.buffer_class < b.buffer_class;
      });
      for (size_t i = 0; i < items.size(); ++i) {
        sites_[static_cast<size_t>(items[i].parameter)].push_back(
            {static_cast<int32_t>(list) / groups, static_cast<int32_t>(list) % groups,
             static_cast<int32_t>(i)});
      }
    }
  }
}

bool Placement::IsTied(const Item& item) const {
  return ParameterOf(item).homes.size() > 1 && layout_.pp > 1;
}

bool Placement::ClosesRun(const Item& last, const Item& next, int64_t real_elems) const {
  if (last.buffer_class != next.buffer_class || last.chunk != next.chunk) return true;
  const BufferRule& rule = layout_.buffer;
  switch (rule.cut) {
    case BufferRule::Cut::kContiguous:
      return false;
    case BufferRule::Cut::kBucketed:
      return last.home != next.home;
    case BufferRule::Cut::kBucketedElems:
      return real_elems >= rule.bucket_elems;
    case BufferRule::Cut::kParam:
    case BufferRule::Cut::kDim0:
      return true;
    case BufferRule::Cut::kMegatron: {
      if (IsTied(last) || IsTied(next)) return true;
      const int64_t replicas = int64_t{layout_.dp} * layout_.cp;
      const int64_t close_at = rule.bucket_elems > 0
                                   ? rule.bucket_elems
                                   : std::max<int64_t>(40'000'000, 1'000'000 * replicas);
      return next.chunk == 0 && real_elems >= close_at;
    }
  }
  DT_CHECK_MSG(false, "unknown cut");
}

int64_t Placement::StartAlignment() const {
  if (layout_.buffer.cut != BufferRule::Cut::kMegatron) return layout_.buffer.start_alignment;
  return layout_.zero == 0 ? 1 : 64;
}

int64_t Placement::RunElems(GridIndex grid, int32_t part, const Item& last,
                            int64_t real_elems) const {
  const BufferRule& rule = layout_.buffer;
  const int64_t slices = grids_[grid].slices();
  if (layout_.zero == 0) return RoundUp(real_elems, rule.end_alignment);
  if (rule.cut == BufferRule::Cut::kMegatron) {
    return RoundUp(real_elems, std::lcm(int64_t{128}, slices));
  }
  if (rule.cut == BufferRule::Cut::kDim0) {
    return RoundUp(real_elems,
                   LocalRowElems(ParameterOf(last), grids_[grid].parts(), part) * slices);
  }
  return RoundUp(real_elems, std::lcm(rule.end_alignment, rule.end_alignment_per_dp * slices));
}

Placement::Part Placement::MakePart(GridIndex grid, int32_t stage, int32_t part) const {
  const std::vector<Item>& items = ItemsOf(grid, stage, part);
  Part made;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i == 0 || ClosesRun(items[i - 1], items[i], made.runs.back().real_elems)) {
      made.runs.push_back({.begin = static_cast<int32_t>(i)});
    }
    Run& run = made.runs.back();
    const int64_t elems = LocalElems(ParameterOf(items[i]), grids_[grid].parts(), part);
    const int64_t offset = elems == 0 ? run.real_elems : RoundUp(run.real_elems, StartAlignment());
    made.run_of.push_back(static_cast<int32_t>(made.runs.size()) - 1);
    made.offsets.push_back(offset);
    run.end = static_cast<int32_t>(i) + 1;
    run.real_elems = offset + elems;
    run.elems = RunElems(grid, part, items[i], run.real_elems);
  }
  return made;
}

std::string Placement::NameOf(GridIndex grid, int32_t stage, int32_t part, int32_t run) const {
  const std::vector<Run>& runs = PartOf(grid, stage, part).runs;
  const std::vector<Item>& items = ItemsOf(grid, stage, part);
  const auto first_of = [&](int32_t r) -> const Item& {
    return items[static_cast<size_t>(runs[static_cast<size_t>(r)].begin)];
  };
  const Item& first = first_of(run);
  const std::string& suffix = classes_[static_cast<size_t>(first.buffer_class)].suffix;
  switch (layout_.buffer.cut) {
    case BufferRule::Cut::kContiguous:
      return (layout_.vpp == 1 ? "stage" : fmt::format("chunk.{}", first.chunk)) + suffix;
    case BufferRule::Cut::kBucketed:
      return NameOfHome(first.home) + suffix;
    case BufferRule::Cut::kParam:
    case BufferRule::Cut::kDim0:
      return ParameterOf(first).name;
    case BufferRule::Cut::kBucketedElems:
    case BufferRule::Cut::kMegatron: {
      int32_t number = 0;  // among the runs of the same class
      while (number < run && first_of(run - number - 1).buffer_class == first.buffer_class) {
        ++number;
      }
      return fmt::format("bucket.{}{}", number, suffix);
    }
  }
  DT_CHECK_MSG(false, "unknown cut");
}

}  // namespace dynatrain::vps
