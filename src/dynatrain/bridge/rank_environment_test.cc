#include "dynatrain/bridge/rank_environment.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dynatrain::bridge {
namespace {

using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

Result<std::optional<RankEnvironment>> Read(const Environment& environment) {
  return ReadRankEnvironment([&](const char* name) -> std::optional<std::string> {
    const auto at = environment.find(name);
    if (at == environment.end()) return std::nullopt;
    return at->second;
  });
}

RankEnvironment MustRead(const Environment& environment) {
  const Result<std::optional<RankEnvironment>> env = Read(environment);
  EXPECT_TRUE(env.ok()) << env.status().ToString();
  EXPECT_TRUE(env.ok() && env->has_value());
  return env.ok() && env->has_value() ? **env : RankEnvironment{};
}

std::string ErrorOf(const Environment& environment) {
  const Result<std::optional<RankEnvironment>> env = Read(environment);
  return env.ok() ? "no error" : env.status().ToString();
}

const Environment kTorchrun = {
    {"RANK", "3"}, {"WORLD_SIZE", "5"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29400"}};
const Environment kSlurm = {{"SLURM_PROCID", "2"},
                            {"SLURM_NTASKS", "3"},
                            {"SLURM_JOB_ID", "4100123"},
                            {"SLURM_JOB_NODELIST", "gpu[07-09,12],login"}};

Environment With(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

Environment Without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

TEST(RankEnvironment, NoLauncherTellsNothing) {
  const Result<std::optional<RankEnvironment>> env = Read({{"MASTER_ADDR", "node1"}});
  ASSERT_TRUE(env.ok());
  EXPECT_FALSE(env->has_value());
}

TEST(RankEnvironment, TorchrunsVariables) {
  const RankEnvironment env = MustRead(kTorchrun);
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.num_ranks, 5);
  EXPECT_EQ(env.store.host, "node1");
  EXPECT_EQ(env.store.port, 29400);
  EXPECT_EQ(env.store.prefix, "");
  EXPECT_FALSE(env.serves_store);
  EXPECT_TRUE(MustRead(With(kTorchrun, "RANK", "0")).serves_store);
}

TEST(RankEnvironment, AnAgentsStoreIsUsedUnderTheRunAndItsAttempt) {
  Environment environment = With(kTorchrun, "RANK", "0");
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  environment["TORCHELASTIC_RUN_ID"] = "run7";
  environment["TORCHELASTIC_RESTART_COUNT"] = "2";
  const RankEnvironment env = MustRead(environment);
  EXPECT_FALSE(env.serves_store);
  EXPECT_EQ(env.store.prefix, "dynatrain/run7/2");
}

TEST(RankEnvironment, SlurmsVariables) {
  const RankEnvironment env = MustRead(kSlurm);
  EXPECT_EQ(env.rank, 2);
  EXPECT_EQ(env.num_ranks, 3);
  EXPECT_EQ(env.store.host, "gpu07");
  EXPECT_EQ(env.store.port, 12000 + 4100123 % 20000);
  EXPECT_FALSE(env.serves_store);
  const RankEnvironment named =
      MustRead(With(With(kSlurm, "MASTER_ADDR", "10.0.0.7"), "MASTER_PORT", "4000"));
  EXPECT_EQ(named.store.host, "10.0.0.7");
  EXPECT_EQ(named.store.port, 4000);
  // The step may run on other nodes than the job's first one.
  EXPECT_EQ(MustRead(With(kSlurm, "SLURM_STEP_NODELIST", "gpu12")).store.host, "gpu12");
}

TEST(RankEnvironment, TheInterfaceForGroupsIsNamedAsEverywhere) {
  EXPECT_EQ(MustRead(With(kTorchrun, "GLOO_SOCKET_IFNAME", "eth1")).gloo.interface, "eth1");
}

TEST(RankEnvironment, ErrorsNameTheVariableItsValueAndWhatWouldBeRight) {
  EXPECT_THAT(ErrorOf(Without(kTorchrun, "WORLD_SIZE")), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(ErrorOf(Without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, "RANK", "5")),
              HasSubstr("RANK=5: a whole number from 0 to 4 is needed"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, "RANK", "-1")), HasSubstr("RANK=-1"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, "WORLD_SIZE", "5x")), HasSubstr("WORLD_SIZE=5x"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, "MASTER_PORT", "65536")),
              HasSubstr("MASTER_PORT=65536: a whole number from 1 to 65535"));
  EXPECT_THAT(ErrorOf(Without(kSlurm, "SLURM_JOB_NODELIST")), HasSubstr("SLURM_JOB_NODELIST"));
  EXPECT_THAT(ErrorOf(Without(kSlurm, "SLURM_JOB_ID")), HasSubstr("SLURM_JOB_ID"));
}

TEST(RankEnvironment, FirstNodeOfANodeList) {
  EXPECT_EQ(FirstNode("alone"), "alone");
  EXPECT_EQ(FirstNode("a,b[1-2]"), "a");
  EXPECT_EQ(FirstNode("gpu[07-09,12],login"), "gpu07");
  EXPECT_EQ(FirstNode("gpu[3,5]"), "gpu3");
  EXPECT_EQ(FirstNode("rack[1-4]-cpu,x"), "rack1-cpu");
}

TEST(AddressTowards, LoopbackLeadsToLoopback) {
  const Result<std::string> address = AddressTowards({.host = "127.0.0.1", .port = 1});
  ASSERT_TRUE(address.ok()) << address.status().ToString();
  EXPECT_EQ(*address, "127.0.0.1");
  const Result<std::string> unknown = AddressTowards({.host = "no.such.host.invalid", .port = 1});
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.status().ToString(), HasSubstr("no.such.host.invalid"));
}

}  // namespace
}  // namespace dynatrain::bridge
