#include "dynatrain/vps/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "dynatrain/base/random.h"
#include "dynatrain/vps/random_layouts.h"

namespace dynatrain::vps {
namespace {

using ::testing::ElementsAre;

std::string ErrorOf(std::string_view spec, std::optional<int32_t> num_ranks = std::nullopt) {
  const Result<Layout> layout = ParseLayout(spec, num_ranks);
  EXPECT_FALSE(layout.ok()) << spec;
  return layout.ok() ? "" : layout.status().message();
}

TEST(Layout, WorksAsTheHeaderShows) {
  const Layout l = *ParseLayout("tp=2,pp=3,dp=1,split=3+2+2,zero=1,ranks=0-5");
  EXPECT_EQ(l.world_size(), 6);
  EXPECT_EQ(l.PositionOf({.tp = 1, .dp = 0, .pp = 2}), 5);
  EXPECT_EQ(l.RankAt(5), 5);
  EXPECT_EQ(l.zero, 1);
}

TEST(Layout, PositionsFollowTheOrderOfAxes) {
  const Layout l = *ParseLayout("tp=2,pp=3,dp=4,order=pp-tp-dp");
  EXPECT_EQ(l.Stride("pp"), 1);
  EXPECT_EQ(l.Stride("tp"), 3);
  EXPECT_EQ(l.Stride("dp"), 6);
  for (int32_t position = 0; position < l.world_size(); ++position) {
    EXPECT_EQ(l.PositionOf(l.RoleAt(position)), position);
  }
}

// C26: a position in a layout is not a rank.
TEST(CaseC26, PositionsAndRanksAreToldApart) {
  const Layout l = *ParseLayout("tp=2,ranks=3+1");
  EXPECT_EQ(l.dp, 1);
  EXPECT_EQ(l.RankAt(0), 3);
  EXPECT_EQ(l.RankAt(1), 1);
  EXPECT_EQ(l.RoleOfRank(1), (Role{.tp = 1}));
  EXPECT_EQ(l.RoleOfRank(3), (Role{.tp = 0}));
  EXPECT_EQ(l.RoleOfRank(0), std::nullopt);
  EXPECT_THAT(l.Ranks(), ElementsAre(3, 1));
}

TEST(Layout, DataParallelDegreeIsWhatTheRanksAllow) {
  EXPECT_EQ(ParseLayout("tp=2,pp=2")->dp, 1);
  EXPECT_EQ(ParseLayout("tp=2,pp=2", 8)->dp, 2);
  EXPECT_EQ(ParseLayout("tp=3", 8)->dp, 2);
  EXPECT_EQ(ParseLayout("tp=2,ranks=0-3+6+7", 8)->dp, 3);
  EXPECT_EQ(ParseLayout("tp=2,dp=1", 8)->dp, 1);
}

// C10: every layer is on exactly one stage, in order.
TEST(CaseC10, UnevenStagesKeepEveryLayer) {
  const auto sizes = [](const Layout& layout, int32_t layers) {
    std::vector<int32_t> counts;
    int32_t next = 0;
    for (int32_t stage = 0; stage < layout.pp; ++stage) {
      const Layout::LayerRange range = layout.LayersOf(stage, layers);
      EXPECT_EQ(range.begin, next);
      next = range.end;
      counts.push_back(range.end - range.begin);
      for (int32_t layer = range.begin; layer < range.end; ++layer) {
        EXPECT_EQ(layout.StageOfLayer(layer, layers), stage);
      }
    }
    EXPECT_EQ(next, layers);
    return counts;
  };
  EXPECT_THAT(sizes(*ParseLayout("pp=1"), 7), ElementsAre(7));
  EXPECT_THAT(sizes(*ParseLayout("pp=2"), 7), ElementsAre(4, 3));
  EXPECT_THAT(sizes(*ParseLayout("pp=3"), 7), ElementsAre(3, 2, 2));
  EXPECT_THAT(sizes(*ParseLayout("pp=3"), 10), ElementsAre(4, 3, 3));
  EXPECT_THAT(sizes(*ParseLayout("pp=4"), 30), ElementsAre(8, 8, 7, 7));
  EXPECT_THAT(sizes(*ParseLayout("pp=3,split=0+7+0"), 7), ElementsAre(0, 7, 0));
  EXPECT_EQ(ParseLayout("pp=2,split=3+3")->Validate(7, std::nullopt).message(),
            "split=3+3 places 6 layers, the model has 7: layer 6 would be on no stage");
}

TEST(ParseLayout, RefusesNamingKeyValueAndWhatIsRight) {
  EXPECT_EQ(ErrorOf(""), "the layout is empty; right is tp=2,pp=2,dp=2");
  EXPECT_EQ(ErrorOf("tp"), "'tp' in layout 'tp' is not KEY=VALUE; right is tp=2,pp=2,dp=2");
  EXPECT_EQ(ErrorOf("tp=2,"), "'' in layout 'tp=2,' is not KEY=VALUE; right is tp=2,pp=2,dp=2");
  EXPECT_EQ(ErrorOf("tp=2,tp=2"), "layout 'tp=2,tp=2' has tp twice");
  for (const char* item : {"tp=0", "pp=two", "dp=-1", "dp=99999999999999", "vpp=1048577"}) {
    EXPECT_EQ(ErrorOf(item), fmt::format("{}: a degree is a whole number of 1 to 1048576", item));
  }
  EXPECT_EQ(ErrorOf("tp=60000,pp=60000,dp=60000"),
            "tp=60000,pp=60000,dp=60000 needs more than 1048576 ranks");
  EXPECT_THAT(ErrorOf("sp=2"), ::testing::StartsWith("unknown key 'sp'; known are tp, pp, dp,"));
  EXPECT_EQ(ErrorOf("order=tp-pp"),
            "order=tp-pp: it must name tp, dp and pp once each, as in order=tp-dp-pp or "
            "order=tp-cp-ep-dp-pp");
  EXPECT_EQ(ErrorOf("order=tp-tp-pp"),
            "order=tp-tp-pp: it must name tp, dp and pp once each, as in order=tp-dp-pp or "
            "order=tp-cp-ep-dp-pp");
  EXPECT_EQ(ErrorOf("pp=2,split=4"), "split=4 has 1 stages, pp=2 needs 2");
  EXPECT_EQ(ErrorOf("pp=2,split=4+x"),
            "split=4+x: 'x' is no number of layers; right is one per stage, as in split=4+3");
  EXPECT_EQ(ErrorOf("zero_order=forward"),
            "zero_order=forward: right is "
            "(forward|reverse)-(contiguous|bucketed|bucketed:ELEMS|param|dim0)[-start:N][-end:N][-"
            "endx:N] "
            "or megatron[:ELEMS], ELEMS and N whole numbers of at least 1");
  EXPECT_THAT(ErrorOf("zero_order=forward-bucketed:0"),
              ::testing::StartsWith("zero_order=forward-bucketed:0: 'bucketed:0' does not fit"));
  // The part that does not fit is told whole, with the sign of its number.
  for (const char* part : {"bucketed:-5", "bucketed:", "param:1", "bucketed:1e9"}) {
    EXPECT_THAT(
        ErrorOf(fmt::format("zero_order=forward-{}", part)),
        ::testing::StartsWith(fmt::format("zero_order=forward-{}: '{}' does not fit", part, part)));
  }
  for (const char* part : {"pad:2", "end:-5", "start:-1", "endx:99999999999999999999"}) {
    EXPECT_THAT(ErrorOf(fmt::format("zero_order=forward-bucketed:8-{}-end:2", part)),
                ::testing::HasSubstr(fmt::format("-{}-end:2: '{}' does not fit", part, part)));
  }
}

TEST(ParseLayout, RefusesRanksThatDoNotFit) {
  EXPECT_EQ(ErrorOf("ranks=0-3,tp=2,pp=2,dp=2"), "ranks=0-3 has 4 ranks, tp=2,pp=2,dp=2 needs 8");
  EXPECT_EQ(ErrorOf("ranks=0-4,tp=2,pp=2"),
            "ranks=0-4 has 5 ranks, tp=2,pp=2 needs a multiple of 4");
  EXPECT_EQ(ErrorOf("ranks=0+1+1"), "ranks=0-1+1 names rank 1 twice");
  EXPECT_EQ(ErrorOf("ranks=3-1"),
            "ranks=3-1: '3-1' is neither a rank nor an ascending range; right is ranks=0-3+6");
  EXPECT_EQ(ErrorOf("ranks=0-3+8", 8), "ranks=0-3+8 names rank 8, the job has ranks 0 to 7");
  EXPECT_EQ(ErrorOf("tp=4,pp=3", 8), "tp=4,pp=3,dp=1 needs 12 ranks, the job has 8");
  EXPECT_EQ(ErrorOf("ranks=0+2147483647"),
            "ranks=0+2147483647: rank 2147483647; right are 0 to 1048575");
  EXPECT_EQ(ErrorOf("ranks=0-2147483647"), "ranks=0-2147483647: more than 1048576 ranks");
}

TEST(ParseLayout, ReadsTheGridOfTheExperts) {
  const Layout l = *ParseLayout("tp=2,cp=2,pp=2,dp=2,ep=4,zero=3");
  EXPECT_EQ(l.world_size(), 16);
  EXPECT_EQ(l.edp(), 2);
  EXPECT_TRUE(l.ExpertsHaveOwnGrid());
  EXPECT_EQ(l.Stride("cp"), 2);
  EXPECT_EQ(l.Stride("dp"), 4);
  EXPECT_EQ(l.Stride("pp"), 8);
  EXPECT_EQ(l.ExpertStride("ep"), 1);
  EXPECT_EQ(l.ExpertStride("edp"), 4);
  EXPECT_EQ(l.ExpertRoleAt(14), (ExpertRole{.etp = 0, .ep = 2, .edp = 1, .pp = 1}));
  EXPECT_EQ(l.RoleAt(14), (Role{.tp = 0, .dp = 1, .pp = 1, .cp = 1}));
  EXPECT_EQ(ParseLayout("tp=2,cp=2", 12)->dp, 3);
  EXPECT_FALSE(ParseLayout("tp=2,etp=2")->ExpertsHaveOwnGrid());
  EXPECT_TRUE(ParseLayout("tp=2")->ExpertsHaveOwnGrid());
}

// Megatron-Core's formulas for the default orders, rank by rank.
TEST(ParseLayout, OrdersAreMegatrons) {
  const Layout l = *ParseLayout("tp=2,cp=2,dp=6,pp=3,ep=4,etp=2,order=tp-cp-ep-dp-pp");
  for (int32_t rank = 0; rank < l.world_size(); ++rank) {
    const Role r = l.RoleAt(rank);
    EXPECT_EQ(rank, r.tp + 2 * (r.cp + 2 * (r.dp + 6 * r.pp)));
    const ExpertRole e = l.ExpertRoleAt(rank);
    EXPECT_EQ(rank, e.etp + 2 * (e.ep + 4 * (e.edp + 3 * e.pp)));
  }
}

TEST(ParseLayout, RefusesGridsThatDoNotFitEachOther) {
  EXPECT_EQ(
      ErrorOf("tp=2,dp=3,ep=4"),
      "ep=4,etp=1: 6 positions per stage (tp=2,cp=1,dp=3) are not a multiple of ep * etp = 4");
  EXPECT_EQ(
      ErrorOf("tp=2,pp=2,dp=2,ep=4,order=tp-pp-dp"),
      "order=tp-cp-pp-dp,eorder=etp-ep-pp-edp: stages must be the same in both grids, but lie 2 "
      "and 4 positions apart; right is pp last in both");
  EXPECT_EQ(ErrorOf("eorder=tp-ep-dp-pp"),
            "eorder=tp-ep-dp-pp: it must name etp, ep, edp and pp once each, as in "
            "eorder=etp-ep-edp-pp");
  EXPECT_EQ(ErrorOf("zero=4"), "zero=4: right is 0, 1, 2 or 3");
  EXPECT_EQ(ErrorOf("zero_order=forward-dim0-end:2"),
            "zero_order: dim0 cuts whole rows and takes no alignment");
  for (const char* rule : {"megatron:0", "megatron:-5", "megatron:"}) {
    EXPECT_THAT(ErrorOf(fmt::format("zero_order={}", rule)),
                ::testing::StartsWith(fmt::format("zero_order={}: right is", rule)));
  }
  EXPECT_EQ(ErrorOf("pp=2,vpp=2,split=2+2"), "split=2+2 has 2 chunks, pp=2,vpp=2 needs 4");
}

// C11: chunks of virtual stages name global layers.
TEST(CaseC11, VirtualStagesWithAShortLastChunk) {
  const Layout l = *ParseLayout("pp=2,vpp=2,split=2+2+2+1");
  std::vector<int32_t> stages;
  for (int32_t layer = 0; layer < 7; ++layer) stages.push_back(l.StageOfLayer(layer, 7));
  EXPECT_THAT(stages, ElementsAre(0, 0, 1, 1, 0, 0, 1));
  const Layout even = *ParseLayout("pp=2,vpp=2");
  for (int32_t layer = 0; layer < 7; ++layer) {
    EXPECT_EQ(even.ChunkOfLayer(layer, 7), l.ChunkOfLayer(layer, 7));
  }
}

TEST(LayoutProperty, PrintsWhatItParses) {
  std::set<uint64_t> fingerprints;
  std::set<std::string> specs;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Random random(seed);
    const auto catalog = testing::RandomWideCatalog(&random);
    const Layout layout = testing::RandomWideLayout(&random, *catalog);
    const Result<Layout> parsed = ParseLayout(layout.ToString());
    ASSERT_TRUE(parsed.ok()) << "seed " << seed << ": " << parsed.status().ToString();
    EXPECT_EQ(*parsed, layout) << "seed " << seed << ": " << layout.ToString();
    fingerprints.insert(layout.Fingerprint());
    specs.insert(layout.ToString());
  }
  EXPECT_EQ(fingerprints.size(), specs.size());
}

TEST(LayoutProperty, AnyTextIsParsedOrRefused) {
  const std::vector<std::string> pieces = {
      "tp", "pp", "dp", "zero", "zero_order", "split",    "ranks", "order",
      "=",  "=",  "=",  ",",    ",",          "+",        "-",     ":",
      "0",  "1",  "2",  "17",   "forward",    "bucketed", "",      " "};
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    Random random(seed);
    std::string spec;
    for (int64_t i = random.Between(0, 14); i > 0; --i) {
      spec +=
          pieces[static_cast<size_t>(random.Between(0, static_cast<int64_t>(pieces.size()) - 1))];
    }
    const Result<Layout> layout = ParseLayout(spec, 64);
    if (!layout.ok()) {
      EXPECT_FALSE(layout.status().message().empty()) << spec;
      continue;
    }
    const Result<Layout> again = ParseLayout(layout->ToString());
    ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << spec;
    EXPECT_EQ(*again, *layout) << "seed " << seed << ": " << spec;
  }
}

}  // namespace
}  // namespace dynatrain::vps
