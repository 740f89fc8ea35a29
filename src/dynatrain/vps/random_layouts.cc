#include "dynatrain/vps/random_layouts.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "dynatrain/vps/local_tensor.h"

namespace dynatrain::vps::testing {

namespace {

Shape RandomShape(Random* random) {
  Shape shape = Coords::Filled(static_cast<int>(random->Between(0, 4)), 1);
  int64_t elems = 1;
  for (int axis = 0; axis < shape.dims(); ++axis) {
    shape[axis] =
        random->OneIn(12) ? 0 : random->Between(1, std::clamp<int64_t>(150 / elems, 1, 9));
    elems *= std::max<int64_t>(shape[axis], 1);
  }
  return shape;
}

Split RandomSplit(Random* random, const Shape& shape, int32_t tp) {
  if (shape.dims() == 0 || random->OneIn(3)) return Split::None();
  const auto axis = static_cast<int>(random->Between(0, shape.dims() - 1));
  if (random->OneIn(3)) return Split::Chunk(axis);
  if (tp == 0 || !random->OneIn(4)) return Split::Balanced(axis);
  std::vector<int64_t> sizes(static_cast<size_t>(tp), 0);
  for (int64_t i = 0; i < shape[axis]; ++i)
    ++sizes[static_cast<size_t>(random->Between(0, tp - 1))];
  return Split::Explicit(axis, sizes);
}

Home RandomHome(Random* random, int32_t layers) {
  const int64_t place = random->Between(0, 5);
  if (place == 0) return Home::Embedding();
  if (place == 1) return Home::Head();
  return Home::Layer(static_cast<int32_t>(random->Between(0, layers - 1)));
}

std::vector<Home> RandomHomes(Random* random, int32_t layers) {
  std::vector<Home> homes = {RandomHome(random, layers)};
  while (random->OneIn(4)) {
    const Home home = RandomHome(random, layers);
    if (std::count(homes.begin(), homes.end(), home) == 0) homes.push_back(home);
  }
  return homes;
}

std::vector<KindSpec> RandomKinds(Random* random) {
  if (random->OneIn(3)) {
    std::vector<KindSpec> kinds = Bf16AdamKinds();
    if (random->OneIn(2)) kinds.push_back({Kind::kGrad, DType::kF32});
    if (random->OneIn(4)) kinds.resize(1);
    return kinds;
  }
  std::vector<KindSpec> kinds = Fp32AdamKinds();
  if (random->OneIn(4)) kinds.resize(1);
  if (kinds.size() > 1 && random->OneIn(8)) kinds.erase(kinds.begin());
  return kinds;
}

BufferRule RandomBufferRule(Random* random) {
  BufferRule rule;
  rule.order = random->OneIn(2) ? BufferRule::Order::kForward : BufferRule::Order::kReverse;
  rule.cut =
      std::array{BufferRule::Cut::kContiguous, BufferRule::Cut::kBucketed,
                 BufferRule::Cut::kBucketedElems}[static_cast<size_t>(random->Between(0, 2))];
  if (rule.cut == BufferRule::Cut::kBucketedElems) rule.bucket_elems = random->Between(1, 300);
  if (random->OneIn(2)) rule.start_alignment = random->Between(1, 8);
  if (random->OneIn(2)) rule.end_alignment = random->Between(1, 12);
  if (random->OneIn(2)) rule.end_alignment_per_dp = random->Between(1, 5);
  return rule;
}

template <class T>
void Shuffle(Random* random, std::vector<T>* values) {
  for (size_t i = values->size(); i > 1; --i) {
    std::swap((*values)[i - 1],
              (*values)[static_cast<size_t>(random->Between(0, static_cast<int64_t>(i) - 1))]);
  }
}

}  // namespace

std::shared_ptr<const StateCatalog> RandomCatalog(Random* random, int32_t tp) {
  auto catalog = std::make_shared<StateCatalog>();
  const auto layers = static_cast<int32_t>(random->Between(1, 7));
  const int64_t parameters = random->Between(1, 9);
  for (int64_t i = 0; i < parameters; ++i) {
    Parameter p;
    p.name = fmt::format("p{}", i);
    p.shape = RandomShape(random);
    p.split = RandomSplit(random, p.shape, tp);
    p.homes = RandomHomes(random, layers);
    p.kinds = RandomKinds(random);
    p.trainable = !random->OneIn(6);
    const Status status = catalog->Add(std::move(p));
    DT_CHECK_MSG(status.ok(), status.ToString());
  }
  return catalog;
}

Layout RandomLayout(Random* random, const StateCatalog& catalog, int32_t tp) {
  Layout layout;
  layout.tp = tp > 0 ? tp : static_cast<int32_t>(random->Between(1, 4));
  layout.pp = static_cast<int32_t>(random->Between(1, 3));
  layout.dp = static_cast<int32_t>(random->Between(1, 5));
  layout.zero = static_cast<int32_t>(random->Between(0, 1));
  layout.buffer = RandomBufferRule(random);
  if (random->OneIn(2)) {
    layout.split.assign(static_cast<size_t>(layout.pp), 0);
    for (int layer = 0; layer < catalog.num_layers(); ++layer) {
      ++layout.split[static_cast<size_t>(random->Between(0, layout.pp - 1))];
    }
  }
  std::vector<std::string> axes = {"tp", "dp", "pp"};
  Shuffle(random, &axes);
  layout.order = axes[0] + "-" + axes[1] + "-" + axes[2];
  if (random->OneIn(2)) {
    std::vector<RankId> ranks(static_cast<size_t>(layout.world_size() + random->Between(0, 4)));
    std::iota(ranks.begin(), ranks.end(), 0);
    Shuffle(random, &ranks);
    ranks.resize(static_cast<size_t>(layout.world_size()));
    layout.ranks = ranks;
  }
  return layout;
}

namespace {

Split RandomWideSplit(Random* random, const Shape& shape) {
  const auto axis = static_cast<int>(random->Between(0, shape.dims() - 1));
  switch (random->Between(0, 6)) {
    case 0:
      return Split::None();
    case 1:
      return Split::Chunk(axis);
    case 2:
      return Split::Padded(random->Between(1, 4));
    case 3:
      return Split::Rows();
    case 4:
    case 5:
      if (axis + 1 < shape.dims()) {
        return Split::Groups(axis, random->Between(0, std::min<int64_t>(shape[axis + 1], 2)));
      }
      [[fallthrough]];
    default:
      return Split::Balanced(axis);
  }
}

StoredParts RandomParts(Random* random, const Shape& shape) {
  StoredParts parts{static_cast<int>(random->Between(0, shape.dims() - 1)), {}};
  for (int64_t left = shape[parts.axis]; left > 0;) {
    parts.sizes.push_back(random->Between(0, left));
    left -= parts.sizes.back();
  }
  return parts;
}

Parameter RandomWideParameter(Random* random, int32_t layers) {
  Parameter p;
  p.shape = RandomShape(random);
  p.homes = RandomHomes(random, layers);
  p.kinds = RandomKinds(random);
  p.trainable = !random->OneIn(6);
  const int dims = p.shape.dims();
  p.row_axes = dims == 0 ? 0 : static_cast<int>(random->Between(1, dims));
  if (dims > 0) {
    p.split = RandomWideSplit(random, p.shape);
    if (random->OneIn(5)) p.stored = RandomParts(random, p.shape);
    if (p.split.rule == Split::Rule::kGroups && p.split.axis >= 0) {
      p.row_axes = std::max(p.row_axes, p.split.axis + 2);
    }
    if (p.stored) p.row_axes = std::max(p.row_axes, p.stored->axis + 1);
  }
  const bool padded = p.split.axis >= 0 && p.split.rule == Split::Rule::kPadded;
  if (random->OneIn(2) && !padded) {
    const auto count = static_cast<int32_t>(random->Between(1, 6));
    p.experts = Experts::One(static_cast<int32_t>(random->Between(0, count - 1)), count);
    const auto axis = static_cast<int>(random->Between(0, std::max(dims - 1, 0)));
    const bool rows = p.split.axis >= 0 && p.split.rule == Split::Rule::kRows;
    const bool groups = p.split.axis >= 0 && p.split.rule == Split::Rule::kGroups;
    if (dims > 0 && axis != p.split.axis && !rows && !(groups && axis == p.split.axis + 1) &&
        !random->OneIn(3)) {
      p.experts = Experts::Stack(axis);
    }
  }
  return p;
}

BufferRule RandomWideBufferRule(Random* random) {
  BufferRule rule = RandomBufferRule(random);
  if (random->OneIn(2)) return rule;
  rule.bucket_elems = 0;
  switch (random->Between(0, 2)) {
    case 0:
      rule.cut = BufferRule::Cut::kParam;
      return rule;
    case 1:
      return {.order = rule.order, .cut = BufferRule::Cut::kDim0};
    default:
      return {.order = BufferRule::Order::kReverse,
              .cut = BufferRule::Cut::kMegatron,
              .bucket_elems = random->OneIn(3) ? 0 : random->Between(1, 300)};
  }
}

std::string RandomOrder(Random* random, std::vector<std::string> axes) {
  Shuffle(random, &axes);
  std::string order = axes[0];
  for (size_t i = 1; i < axes.size(); ++i) order += "-" + axes[i];
  return order;
}

Layout DrawWideLayout(Random* random, const StateCatalog& catalog) {
  Layout layout;
  layout.tp = static_cast<int32_t>(random->Between(1, 6));
  layout.pp = static_cast<int32_t>(random->Between(1, 3));
  layout.dp = static_cast<int32_t>(random->Between(1, 4));
  layout.cp = random->OneIn(3) ? 2 : 1;
  layout.vpp = random->OneIn(3) ? static_cast<int32_t>(random->Between(2, 3)) : 1;
  const auto divisor_of = [&](int32_t value) {
    auto divisor = static_cast<int32_t>(random->Between(1, value));
    while (value % divisor != 0) --divisor;
    return divisor;
  };
  layout.ep = divisor_of(layout.tp * layout.cp * layout.dp);
  layout.etp = divisor_of(layout.tp * layout.cp * layout.dp / layout.ep);
  layout.zero = static_cast<int32_t>(random->Between(0, 3));
  layout.buffer = RandomWideBufferRule(random);
  if (random->OneIn(2)) {
    layout.split.assign(static_cast<size_t>(layout.num_chunks()), 0);
    for (int layer = 0; layer < catalog.num_layers(); ++layer) {
      ++layout.split[static_cast<size_t>(random->Between(0, layout.num_chunks() - 1))];
    }
  }
  if (random->OneIn(2)) layout.order = RandomOrder(random, {"tp", "cp", "dp", "pp"});
  if (random->OneIn(3)) layout.order = RandomOrder(random, {"tp", "dp", "pp"});
  if (random->OneIn(3)) layout.eorder = RandomOrder(random, {"etp", "ep", "edp", "pp"});
  if (random->OneIn(2)) {
    layout.ranks.resize(static_cast<size_t>(layout.world_size()));
    std::iota(layout.ranks.begin(), layout.ranks.end(), random->Between(0, 3));
    Shuffle(random, &layout.ranks);
  }
  return layout;
}

bool Fits(const Layout& layout, const StateCatalog& catalog) {
  if (layout.world_size() > 24 || !layout.Validate(catalog.num_layers(), std::nullopt).ok()) {
    return false;
  }
  for (const Parameter& p : catalog.parameters()) {
    const bool experts = p.experts && layout.ExpertsHaveOwnGrid();
    const PartGrid grid = experts ? PartGrid{layout.etp, layout.ep} : PartGrid{layout.tp, 1};
    if (!CheckSplitFits(p, grid, "tp").ok()) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<const StateCatalog> RandomWideCatalog(Random* random) {
  auto catalog = std::make_shared<StateCatalog>();
  const auto layers = static_cast<int32_t>(random->Between(1, 7));
  for (int64_t i = random->Between(1, 7); i > 0; --i) {
    Parameter p = RandomWideParameter(random, layers);
    p.name = fmt::format("p{}", i);
    const Status status = catalog->Add(std::move(p));
    DT_CHECK_MSG(status.ok(), status.ToString());
  }
  return catalog;
}

Layout RandomWideLayout(Random* random, const StateCatalog& catalog) {
  Layout layout = DrawWideLayout(random, catalog);
  while (!Fits(layout, catalog)) layout = DrawWideLayout(random, catalog);
  return layout;
}

Box RandomBox(Random* random, const Shape& shape) {
  if (random->OneIn(3)) return Box::Whole(shape);
  Coords lo = Coords::Filled(shape.dims(), 0);
  Coords hi = shape;
  for (int axis = 0; axis < shape.dims(); ++axis) {
    lo[axis] = random->Between(0, shape[axis]);
    hi[axis] = random->Between(lo[axis], shape[axis]);
  }
  return {lo, hi};
}

}  // namespace dynatrain::vps::testing
