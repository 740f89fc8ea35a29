#include "dynatrain/vps/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dynatrain::vps {
namespace {

Parameter Weight(std::string name) {
  return {.name = std::move(name),
          .shape = {6, 4},
          .split = Split::Balanced(0),
          .homes = {Home::Layer(2)},
          .kinds = Fp32AdamKinds()};
}

std::vector<int64_t> Extents(const Split& split, int64_t extent, int64_t parts) {
  std::vector<int64_t> extents;
  int64_t end = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const AxisRange range = SplitAxis(split, extent, parts, part);
    EXPECT_EQ(range.begin, end);
    end = range.end;
    extents.push_back(range.end - range.begin);
  }
  EXPECT_EQ(end, extent);
  return extents;
}

TEST(SplitAxis, CutsByRule) {
  using ::testing::ElementsAre;
  EXPECT_THAT(Extents(Split::Balanced(0), 6, 4), ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(Extents(Split::Balanced(0), 30, 4), ElementsAre(8, 8, 7, 7));
  EXPECT_THAT(Extents(Split::Chunk(0), 6, 4), ElementsAre(2, 2, 2, 0));
  EXPECT_THAT(Extents(Split::Chunk(0), 1, 4), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(Extents(Split::Chunk(0), 0, 2), ElementsAre(0, 0));
  EXPECT_THAT(Extents(Split::Explicit(0, {1, 0, 5}), 6, 3), ElementsAre(1, 0, 5));
}

TEST(StateCatalog, NumbersTensorsByParameterAndKind) {
  StateCatalog catalog;
  ASSERT_TRUE(catalog.Add(Weight("a")).ok());
  Parameter b = Weight("b");
  b.kinds = {{Kind::kExpAvg, DType::kF32}, {Kind::kParam, DType::kBF16}};  // any order
  ASSERT_TRUE(catalog.Add(b).ok());
  EXPECT_EQ(catalog.tensors().size(), 5u);
  EXPECT_EQ(catalog.NameOf(3), "b/param");
  EXPECT_EQ(catalog.NameOf(4), "b/exp_avg");
  EXPECT_EQ(catalog.Find(1, Kind::kExpAvg), 4);
  EXPECT_EQ(catalog.Find(1, Kind::kMaster), std::nullopt);
  EXPECT_EQ(catalog.FindParameter("b"), 1);
  EXPECT_EQ(catalog.FindParameter("c"), std::nullopt);
  EXPECT_EQ(catalog.num_layers(), 3);
  EXPECT_EQ(catalog.total_bytes(), 24 * 12 + 24 * 6);
}

TEST(StateCatalog, RefusesByName) {
  StateCatalog catalog;
  ASSERT_TRUE(catalog.Add(Weight("w")).ok());
  const auto error = [&](auto change) {
    Parameter p = Weight("x");
    change(&p);
    const Status status = catalog.Add(p);
    EXPECT_FALSE(status.ok());
    return status.message();
  };
  EXPECT_EQ(error([](Parameter* p) { p->name = "w"; }), "parameter w: is already in the catalog");
  EXPECT_EQ(error([](Parameter* p) { p->name = ""; }), "parameter 1 has an empty name");
  EXPECT_EQ(error([](Parameter* p) { p->homes.clear(); }), "parameter x: no home in the pipeline");
  EXPECT_EQ(error([](Parameter* p) { p->homes = {Home::Head(), Home::Head()}; }),
            "parameter x: the same home is listed twice");
  EXPECT_EQ(error([](Parameter* p) { p->homes = {Home::Layer(-1)}; }),
            "parameter x: home in layer -1; layers start at 0");
  EXPECT_EQ(error([](Parameter* p) { p->kinds.clear(); }), "parameter x: no kinds of state");
  EXPECT_EQ(error([](Parameter* p) { p->kinds.push_back(p->kinds[0]); }),
            "parameter x: kind param is listed twice");
  EXPECT_EQ(error([](Parameter* p) { p->shape = {0, -1}; }),
            "parameter x: an axis has the negative extent -1");
  EXPECT_EQ(error([](Parameter* p) { p->shape = {int64_t{1} << 40, int64_t{1} << 40}; }),
            "parameter x: the shape 1099511627776 x 1099511627776 has more than 2^62 elements");
  EXPECT_EQ(error([](Parameter* p) { p->shape = {int64_t{1} << 31, int64_t{1} << 31}; }),
            "parameter x: the state would exceed 2^62 bytes");
  EXPECT_EQ(error([](Parameter* p) { p->split = Split::Balanced(2); }),
            "parameter x: split axis 2 is outside its 2 axes");
  EXPECT_EQ(error([](Parameter* p) { p->split = Split::Explicit(0, {2, 3}); }),
            "parameter x: explicit split sizes 2 + 3 sum to 5, axis 0 has 6");
  EXPECT_EQ(error([](Parameter* p) { p->split = Split::Explicit(0, {7, -1}); }),
            "parameter x: explicit split has the negative size -1");
  EXPECT_EQ(error([](Parameter* p) { p->split = Split::Balanced(0, 0); }),
            "parameter x: split block 0 is not positive");
  EXPECT_EQ(catalog.parameters().size(), 1u);
}

TEST(StateCatalog, FingerprintSeesEveryField) {
  const auto fingerprint = [](auto change) {
    StateCatalog catalog;
    Parameter p = Weight("w");
    change(&p);
    EXPECT_TRUE(catalog.Add(p).ok());
    return catalog.Fingerprint();
  };
  const std::vector<uint64_t> prints = {
      fingerprint([](Parameter*) {}),
      fingerprint([](Parameter* p) { p->name = "v"; }),
      fingerprint([](Parameter* p) { p->shape = {4, 6}; }),
      fingerprint([](Parameter* p) { p->split = Split::Chunk(0); }),
      fingerprint([](Parameter* p) { p->split = Split::Balanced(1); }),
      fingerprint([](Parameter* p) { p->split = Split::Balanced(0, 2); }),
      fingerprint([](Parameter* p) { p->split = Split::Explicit(0, {3, 3}); }),
      fingerprint([](Parameter* p) { p->homes = {Home::Layer(1)}; }),
      fingerprint([](Parameter* p) { p->homes = {Home::Head()}; }),
      fingerprint([](Parameter* p) { p->kinds = Bf16AdamKinds(); }),
      fingerprint([](Parameter* p) { p->trainable = false; }),
      fingerprint([](Parameter* p) { p->weight_decay = false; })};
  EXPECT_EQ(std::set<uint64_t>(prints.begin(), prints.end()).size(), prints.size());
  EXPECT_EQ(prints[0], fingerprint([](Parameter*) {}));
}

TEST(Names, ParseBack) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64,
                            DType::kI32, DType::kU8}) {
    EXPECT_EQ(*ParseDType(DTypeName(dtype)), dtype);
  }
  for (const Kind kind :
       {Kind::kParam, Kind::kGrad, Kind::kMaster, Kind::kExpAvg, Kind::kExpAvgSq}) {
    EXPECT_EQ(*ParseKind(KindName(kind)), kind);
  }
  EXPECT_EQ(ParseDType("fp8").status().message(),
            "unknown dtype 'fp8'; known are fp32, bf16, fp16, fp64, int64, int32, uint8");
  EXPECT_FALSE(ParseKind("moment").ok());
}

}  // namespace
}  // namespace dynatrain::vps
