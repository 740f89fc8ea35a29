// What is said in the store, and the protocol struck at every single step of whole jobs.
#include "dynatrain/elastic/switch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dynatrain/base/log.h"
#include "dynatrain/elastic/agent.h"
#include "dynatrain/elastic/memory_store.h"
#include "dynatrain/elastic/sim_world.h"
#include "dynatrain/elastic/switch_votes.h"

namespace dynatrain::elastic {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(SwitchRequest, GoesThroughText) {
  const SwitchRequest request{7, "tp=2,dp=1 \"\\\xff", 41};
  const auto read = SwitchRequest::FromJson(request.ToJson());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->id, 7);
  EXPECT_EQ(read->requested_step, 41);
  EXPECT_TRUE(read->spec.starts_with("tp=2,dp=1 \"\\"));
  for (const char* bad : {"", "{}", "7", "[1]", "{\"id\":\"x\",\"spec\":1,\"requested_step\":0}"}) {
    EXPECT_FALSE(SwitchRequest::FromJson(bad).ok()) << bad;
  }
}

TEST(SwitchReport, GoesThroughTextAndMerges) {
  SwitchReport a;
  a.id = 3;
  a.step = 9;
  a.from = "dp=2";
  a.to = "tp=2,dp=1";
  a.outcome = Outcome::kCommitted;
  a.pause_seconds = 0.25;
  a.moved_bytes = 100;
  a.kept_bytes = 7;
  a.digest_before = ~uint64_t{0};
  a.digest_after = ~uint64_t{0};
  SwitchReport b = a;
  b.pause_seconds = 0.5;
  b.peak_extra_bytes = 11;
  b.digest_before = b.digest_after = 0;
  const auto read = SwitchReport::FromJson(a.ToJson());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->ToJson(), a.ToJson());
  EXPECT_EQ(read->digest_before, a.digest_before);
  const SwitchReport merged = MergeReports({*read, b});
  EXPECT_EQ(merged.outcome, Outcome::kCommitted);
  EXPECT_EQ(merged.pause_seconds, 0.5);
  EXPECT_EQ(merged.moved_bytes, 200);
  EXPECT_EQ(merged.kept_bytes, 14);
  EXPECT_EQ(merged.peak_extra_bytes, 11);
  EXPECT_EQ(merged.digest_before, ~uint64_t{0});
  EXPECT_FALSE(SwitchReport::FromJson("{\"id\":1}").ok());
}

TEST(SwitchReport, DigestsAreTextThatNoReaderRounds) {
  SwitchReport report;
  report.digest_before = (uint64_t{1} << 53) + 1;
  report.digest_after = ~uint64_t{0};
  report.replica_check = (uint64_t{1} << 61) - 2;
  const std::string text = report.ToJson();
  EXPECT_THAT(text, HasSubstr(R"("digest_before":"0020000000000001")"));
  EXPECT_THAT(text, HasSubstr(R"("digest_after":"ffffffffffffffff")"));
  EXPECT_THAT(text, HasSubstr(R"("replica_check":"1ffffffffffffffe")"));
  EXPECT_EQ(SwitchReport::FromJson(text)->digest_before, report.digest_before);
  EXPECT_EQ(SwitchReport::FromJson(text)->replica_check, report.replica_check);
  for (const char* bad : {"7", "\"\"", "\"xyz\"", "\"10020000000000001\"", "null"}) {
    std::string changed = text;
    changed.replace(changed.find("\"0020000000000001\""), 18, bad);
    EXPECT_FALSE(SwitchReport::FromJson(changed).ok()) << bad;
  }
}

TEST(Decision, WhateverIsNotCommitIsAbort) {
  EXPECT_TRUE(Decision::FromText(Decision{true, ""}.ToText()).commit);
  const Decision abort = Decision::FromText(Decision{false, "rank 2: no memory"}.ToText());
  EXPECT_FALSE(abort.commit);
  EXPECT_EQ(abort.reason, "rank 2: no memory");
  EXPECT_FALSE(Decision::FromText("Commit").commit);
  EXPECT_FALSE(Decision::FromText("").commit);
}

TEST(Votes, AnUnreadableVoteIsANo) {
  EXPECT_TRUE(Vote::FromJson(Vote{}.ToJson()).error.empty());
  EXPECT_EQ(Vote::FromJson(Vote::No("why").ToJson()).error, "why");
  for (const char* bad : {"", "{}", "null", "[]", "{\"error\":\"\"}"}) {
    EXPECT_FALSE(Vote::FromJson(bad).error.empty()) << bad;
  }
}

TEST(Votes, PlansMustBeTheSameAndMessagesMustMatch) {
  Vote a, b;
  a.fingerprint = b.fingerprint = 5;
  a.catalog = b.catalog = 9;
  a.balance = 3;
  b.balance = ~uint64_t{0} - 2;
  EXPECT_TRUE(CheckPlanned({{0, a}, {1, b}}).ok());
  b.balance += 1;
  EXPECT_FALSE(CheckPlanned({{0, a}, {1, b}}).ok());
  b.balance -= 1;
  b.fingerprint = 6;
  const Status differ = CheckPlanned({{0, a}, {3, b}});
  EXPECT_NE(differ.message().find("ranks 0 and 3"), std::string::npos) << differ.message();
  // C17: a rank that registered its tensors in another order is told so.
  b.catalog = 10;
  EXPECT_EQ(CheckPlanned({{0, a}, {3, b}}).message(),
            "ranks 0 and 3 registered different state (catalogs 0x9 and 0xa): the same tensors in "
            "the same order on every rank is right");
  EXPECT_NE(CheckPlanned({{0, a}, {1, Vote::No("no memory")}}).message().find("rank 1: no memory"),
            std::string::npos);
}

TEST(Votes, VerifiedNeedsEqualDigestsAgreeingReplicasAndOneJobState) {
  using engine::Verify;
  Vote old_rank, new_rank;
  old_rank.is_old = true;
  old_rank.job_state_hash = 17;
  old_rank.before = {100, 0};
  new_rank.after = {100, 0};
  const Votes good = {{0, old_rank}, {1, new_rank}};
  EXPECT_TRUE(CheckVerified(good, Verify::kFull).status.ok());
  EXPECT_EQ(CheckVerified(good, Verify::kFull).after.digest, 100u);

  Votes bad = good;
  bad[1].after.digest = 101;
  EXPECT_FALSE(CheckVerified(bad, Verify::kFull).status.ok());
  EXPECT_TRUE(CheckVerified(bad, Verify::kMoved).status.ok());
  bad = good;
  bad[0].before.replica = 1;
  EXPECT_NE(CheckVerified(bad, Verify::kFull).status.message().find("old layout differ"),
            std::string::npos);
  bad = good;
  bad[1].after.replica = 1;
  EXPECT_NE(CheckVerified(bad, Verify::kFull).status.message().find("new layout differ"),
            std::string::npos);
  bad = good;
  bad[0].ties = {{"embedding/param", 7}, {"head/param", 1}};
  bad[1].ties = {{"embedding/param", 5}, {"head/param", (uint64_t{1} << 61) - 2}};
  for (const Verify verify : {Verify::kMoved, Verify::kFull}) {
    EXPECT_EQ(CheckVerified(bad, verify).status.message(),
              "tied tensor embedding/param: its copies in the old layout differ");
    EXPECT_EQ(Vote::FromJson(bad[1].ToJson()).ties, bad[1].ties);
  }
  bad = good;
  bad[2] = old_rank;
  bad[2].job_state_hash = 18;
  EXPECT_NE(CheckVerified(bad, Verify::kMoved).status.message().find("job state"),
            std::string::npos);
  // A newcomer's idea of the job state is not asked for.
  bad = good;
  bad[1].job_state_hash = 99;
  EXPECT_TRUE(CheckVerified(bad, Verify::kFull).status.ok());
}

TEST(RequestSwitch, IdsAreTakenInOrderByManyAskers) {
  MemoryStore store;
  EXPECT_EQ(*RequestSwitch(store, "dp=1", 0), 1);
  EXPECT_EQ(*RequestSwitch(store, "dp=2", 3), 2);
  // Somebody else is quicker than the hint.
  ASSERT_TRUE(store.Set(SwitchKey(3, "request"), SwitchRequest{3, "tp=2", 0}.ToJson()).ok());
  EXPECT_EQ(*RequestSwitch(store, "dp=3", 3), 4);
  EXPECT_EQ(SwitchRequest::FromJson(**store.TryGet(SwitchKey(4, "request")))->spec, "dp=3");
}

// ---- whole jobs ----

SimScript Script(std::string first, std::vector<std::string> switches) {
  SimScript script;
  script.seed = 1;
  script.num_ranks = 4;
  script.first = std::move(first);
  script.switches = std::move(switches);
  return script;
}

void ExpectHolds(const SimScript& script, const SimResult& result) {
  EXPECT_TRUE(result.violations.empty()) << script.ToString() << "\n  " << result.ToString();
}

// C30: ranks 0 and 2 are fresh processes with their own idea of the step; ranks 1 and 3 hold the
// state.
TEST(Job, NewcomersAreNeverASource) {
  const SimScript script = Script("dp=2,zero=1,ranks=1+3", {"dp=4,zero=1,ranks=0-3"});
  const SimResult result = RunSim(script);
  ExpectHolds(script, result);
  EXPECT_EQ(result.committed, 1);
}

TEST(Job, MovesToRanksThatHeldNothing) {
  const SimScript script = Script("dp=2,zero=1,ranks=0-1", {"tp=2,dp=1,ranks=2-3", "dp=2,zero=1"});
  const SimResult result = RunSim(script);
  ExpectHolds(script, result);
  EXPECT_EQ(result.committed, 2);
}

TEST(Job, RefusesWhatMakesNoSenseAndTrainsOn) {
  for (const char* spec : {"tp=3,pp=2", "pp=2,dp=1,split=1+1", "dp=2,zero=1", "nonsense", "",
                           "tp=0", "dp=2,ranks=0+9"}) {
    const SimScript script = Script("dp=2,zero=1", {spec, "tp=2,dp=1"});
    const SimResult result = RunSim(script);
    ExpectHolds(script, result);
    EXPECT_EQ(result.rolled_back, 1) << spec;
    EXPECT_EQ(result.committed, 1) << spec;
  }
}

TEST(Job, AllRanksThatOweAVoteAreNamedAndNoOther) {
  SimScript script = Script("dp=1,ranks=0", {"dp=4"});
  for (const RankId victim : {1, 3}) {
    script.faults.push_back({SimFault::Kind::kFreeze, victim, 0, std::chrono::seconds(9), 0});
  }
  const SimResult result = RunSim(script);
  ExpectHolds(script, result);
  ASSERT_EQ(result.reasons.size(), 1U);
  EXPECT_NE(result.reasons[0].find("no vote `planned` of ranks 1, 3 within the deadline"),
            std::string::npos)
      << result.reasons[0];
}

// C12: the copies on the two ends of the pipeline differ by one bit when the state is to move.
TEST(Job, CopiesOfATiedTensorThatDifferAreReportedAndNotPicked) {
  for (const auto& [from, to] : {std::pair{"pp=2,dp=1", "dp=1"},
                                 {"pp=2,dp=1", "pp=3,dp=1,ranks=2+1+3"},
                                 {"tp=2,pp=2,dp=1", "dp=3,zero=1"}}) {
    for (const auto& [verify, mode] : {std::pair{engine::Verify::kMoved, engine::Mode::kKeep},
                                       {engine::Verify::kFull, engine::Mode::kKeep},
                                       {engine::Verify::kMoved, engine::Mode::kStream}}) {
      SimScript script = Script(from, {to});
      script.verify = verify;
      script.mode = mode;
      const SimResult agrees = RunSim(script);
      ExpectHolds(script, agrees);
      EXPECT_EQ(agrees.committed, 1);
      EXPECT_EQ(agrees.rolled_back, 0);
      for (const RankId rank : vps::ParseLayout(from)->Ranks()) {
        script.drifted = rank;
        const SimResult result = RunSim(script);
        ExpectHolds(script, result);
        ASSERT_EQ(result.reasons.size(), 1U) << from << " to " << to << ", rank " << rank;
        EXPECT_THAT(result.reasons[0],
                    EndsWith("tied tensor embedding/param: its copies in the old layout differ"));
        EXPECT_EQ(result.lost, 0) << "found before memory was given back";
        EXPECT_EQ(result.committed, 1) << "once the copies agree again";
      }
    }
  }
}

// C29: each rank fails in each way at each step; the switch is off for all or done for all, and
// then it works.
TEST(Job, SurvivesAFaultAtEveryStepOfEveryRank) {
  using Kind = SimFault::Kind;
  const SimScript base = Script("dp=3,zero=1,ranks=0-2", {"tp=2,dp=1,ranks=3+1"});
  const SimResult quiet = RunSim(base);
  ExpectHolds(base, quiet);
  ASSERT_EQ(quiet.committed, 1);
  int64_t committed = 0, rolled_back = 0;
  for (const Kind kind : {Kind::kKill, Kind::kFreeze, Kind::kStoreError, Kind::kTransferError}) {
    for (RankId victim = 0; victim < base.num_ranks; ++victim) {
      const int64_t steps = std::min<int64_t>(quiet.steps_of_rank.at(victim), 150);
      for (int64_t step = 0; step < steps; step += kind == Kind::kKill ? 1 : 3) {
        SimScript script = base;
        script.faults = {{kind, victim, step, std::chrono::seconds(5), 0}};
        const SimResult result = RunSim(script);
        ExpectHolds(script, result);
        if (HasFailure()) return;
        committed += result.committed;
        rolled_back += result.rolled_back;
      }
    }
  }
  EXPECT_GT(committed, 0);
  EXPECT_GT(rolled_back, 0);
}

}  // namespace
}  // namespace dynatrain::elastic
