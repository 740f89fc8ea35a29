#include "dynatrain/apps/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/models/catalog.h"
#include "dynatrain/models/config.h"

namespace dynatrain::apps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Asked {
  std::string model = "tiny-moe";
  std::string from = "tp=1,pp=2,dp=4,ep=4,zero=1";
  std::string to = "tp=3,pp=1,dp=4,ep=2,zero=1,zero_order=reverse-contiguous";
  int32_t ranks_per_node = 4;
  bool derive = false;
  engine::Mode mode = engine::Mode::kKeep;
  std::optional<ByteCount> budget = std::nullopt;
};

Result<PlanReport> MakeReport(const Asked& asked) {
  PlanReport report;
  report.model = asked.model;
  report.mode = asked.mode;
  report.request.catalog =
      *models::MakeCatalog(*models::LoadModel(asked.model), vps::Bf16AdamKinds());
  report.request.from = *vps::ParseLayout(asked.from);
  report.request.to = *vps::ParseLayout(asked.to);
  report.request.topology = {.name = "lab",
                             .ranks_per_node = asked.ranks_per_node,
                             .intra_node_bytes_per_s = 1e9,
                             .inter_node_bytes_per_s = 5e8};
  report.request.options.relays = true;
  report.request.options.derive = asked.derive;
  DT_ASSIGN_OR_RETURN(report.plan, planner::MakePlan(report.request));
  DT_ASSIGN_OR_RETURN(report.programs,
                      FiguresOf(report.request, *report.plan, asked.mode, asked.budget));
  return report;
}

TEST(PlanReport, JsonHasTheFiguresOfPlanAndPrograms) {
  const auto report = MakeReport({});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const planner::PlanTotals& totals = report->plan->totals;
  const nlohmann::json json = ReportAsJson(*report);
  EXPECT_EQ(json["moved_bytes"], totals.moved_bytes);
  EXPECT_EQ(json["cross_node_bytes"], totals.cross_node_bytes);
  EXPECT_EQ(json["max_node_in_bytes"], totals.node_in.bytes);
  EXPECT_GT(json["relayed_bytes"], 0);
  // The programs relay as the plan does: what crosses nodes beside its bytes are hashes.
  EXPECT_GE(report->programs->cross_node_bytes, totals.cross_node_bytes);
  EXPECT_LT(report->programs->cross_node_bytes, totals.cross_node_bytes * 11 / 10);
  EXPECT_EQ(json["programs_cross_node_bytes"], report->programs->cross_node_bytes);
  EXPECT_GT(json["messages"], 0);
  EXPECT_EQ(json["phases"], 1);
  EXPECT_GT(json["peak_extra_bytes"], 0);
  EXPECT_GE(json["predicted_seconds"].get<double>(), totals.bound_seconds);
}

TEST(PlanReport, SaysWhatIsAssumedOfATopology) {
  Asked asked;
  auto report = MakeReport(asked);
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(ReportAsText(*report), Not(HasSubstr("assumed")));
  report->request.topology.assumed = {{"latency_s", 1e-5}};
  EXPECT_THAT(ReportAsText(*report),
              HasSubstr("assumed, as the topology does not tell: latency_s 1e-05"));
  EXPECT_EQ(ReportAsJson(*report)["assumed"]["latency_s"], 1e-5);
}

TEST(PlanReport, ABudgetMeansPhasesOrARefusalThatNamesTheLeast) {
  Asked asked;
  asked.mode = engine::Mode::kStream;
  const auto free = MakeReport(asked);
  ASSERT_TRUE(free.ok());
  ASSERT_EQ(free->programs->phases, 1);
  asked.budget = free->programs->peak_extra_bytes - 1;
  const auto tight = MakeReport(asked);
  if (tight.ok()) {
    EXPECT_GT(tight->programs->phases, 1);
    EXPECT_LE(tight->programs->peak_extra_bytes, *asked.budget);
  } else {
    EXPECT_THAT(tight.status().message(), HasSubstr("would do"));
  }
  asked.budget = 0;
  const auto none = MakeReport(asked);
  EXPECT_EQ(none.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(none.status().message(), AllOf(HasSubstr("rank "), HasSubstr("would do")));
}

TEST(PlanReport, DerivedParametersAreNotSent) {
  Asked asked;
  asked.from = "dp=2,zero=1";
  asked.to = "dp=4";  // every rank takes in the masters, from which it can make the parameters
  const auto sent = MakeReport(asked);
  asked.derive = true;
  const auto derived = MakeReport(asked);
  ASSERT_TRUE(sent.ok() && derived.ok());
  ASSERT_GT(derived->plan->totals.derived_bytes, 0);
  EXPECT_LT(derived->programs->predicted_seconds, sent->programs->predicted_seconds);
  EXPECT_EQ(ReportAsJson(*derived)["derived_bytes"], derived->plan->totals.derived_bytes);
}

TEST(PlanReport, FiguresThatAreNotAskedForAreNull) {
  auto report = MakeReport({});
  ASSERT_TRUE(report.ok());
  report->programs.reset();
  const nlohmann::json json = ReportAsJson(*report);
  for (const char* key : {"messages", "phases", "peak_extra_bytes", "predicted_seconds"}) {
    EXPECT_TRUE(json.at(key).is_null()) << key;
  }
}

TEST(RoleText, NamesEveryAxisThatHasADegree) {
  const auto text = [](const std::string& spec, RankId rank) {
    return RoleText(*vps::ParseLayout(spec), rank);
  };
  EXPECT_EQ(text("tp=2,pp=2,dp=3", 9), "stage 1, tp 1, dp 1");
  EXPECT_EQ(text("tp=2,cp=2,dp=2", 7), "stage 0, tp 1, dp 1, cp 1");
  EXPECT_EQ(text("tp=2,dp=4,ep=4,etp=2", 5), "stage 0, tp 1, dp 2, ep 2, etp 1");
  EXPECT_EQ(text("dp=2,ranks=3+5", 4), "nothing");
}

TEST(Explain, TellsWhatIsFullestAndWhyAndWhatWouldBeCheaper) {
  const auto report = MakeReport({});
  ASSERT_TRUE(report.ok());
  const auto text = Explain(*report);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const planner::PlanTotals& totals = report->plan->totals;
  EXPECT_THAT(*text,
              HasSubstr(fmt::format("fullest rank in: rank {} takes in", totals.rank_in.id)));
  EXPECT_THAT(*text, HasSubstr(fmt::format("fullest rank out: rank {} sends", totals.rank_out.id)));
  EXPECT_THAT(*text,
              HasSubstr(fmt::format("fullest node in: node {} takes in", totals.node_in.id)));
  EXPECT_THAT(*text, HasSubstr("of tensors it held nothing of"));
  EXPECT_THAT(*text, HasSubstr("why from there"));
  EXPECT_THAT(*text, HasSubstr("what would be cheaper:\n"));
  EXPECT_THAT(*text, HasSubstr("the old zero_order: moves"));
}

// What --explain offers is what a plan with that change has.
TEST(Explain, OffersFreeRolesThatSave) {
  Asked asked;
  asked.from = "pp=2,dp=2,zero=1,ranks=0-3";
  asked.to = "pp=2,dp=2,zero=1,ranks=3+2+1+0";
  const auto report = MakeReport(asked);
  ASSERT_TRUE(report.ok());
  const auto text = Explain(*report);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("--roles free: moves 0 B instead of"));
}

nlohmann::json DataOf(const std::string& page) {
  const std::string open = "id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(Html, HoldsAllTrafficOf128Ranks) {
  Asked asked;
  asked.from = "dp=128,ep=8,zero=1";
  asked.to = "pp=2,dp=64,ep=4,zero=1";
  asked.ranks_per_node = 8;
  const auto report = MakeReport(asked);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const std::string page = ReportAsHtml(*report);
  const nlohmann::json data = DataOf(page);
  ASSERT_EQ(data["ranks"].size(), 128U);
  for (const char* key : {"nodes", "old", "new", "kept"}) EXPECT_EQ(data[key].size(), 128U) << key;
  EXPECT_EQ(data["nodes"][127], 15);
  EXPECT_EQ(data["new"][127], "stage 1, tp 0, dp 63, ep 3, etp 0");
  ByteCount total = 0;
  for (const auto& cell : data["cells"]) {
    EXPECT_LT(cell[0], 128);
    EXPECT_LT(cell[1], 128);
    total += cell[2].get<ByteCount>();
  }
  EXPECT_EQ(total, report->plan->totals.wire_bytes);
  EXPECT_THAT(page, Not(HasSubstr("http")));  // self-contained
}

TEST(Html, TextCannotLeaveItsPlace) {
  auto report = MakeReport({});
  ASSERT_TRUE(report.ok());
  report->model = "</script><script>alert(1)\xff";
  EXPECT_EQ(DataOf(ReportAsHtml(*report))["summary"]["model"],
            "</script><script>alert(1)\xef\xbf\xbd");
}

}  // namespace
}  // namespace dynatrain::apps
