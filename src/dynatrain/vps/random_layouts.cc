#include "dynatrain/vps/random_layouts.h"

#include <algorithm>
#include <array>
#include <numeric>

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
