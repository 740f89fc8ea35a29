#include "dynatrain/planner/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>

namespace dynatrain::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

void ExpectRefused(std::string_view json, std::string_view why) {
  const auto topology = ParseTopology(json);
  ASSERT_FALSE(topology.ok()) << json;
  EXPECT_THAT(topology.status().message(), HasSubstr(std::string(why))) << json;
}

TEST(Topology, PresetsHaveTheirPublishedNumbers) {
  const auto a800 = LoadTopology("a800x16");
  ASSERT_TRUE(a800.ok());
  EXPECT_EQ(a800->num_ranks(), 128);
  EXPECT_EQ(a800->intra_node_bytes_per_s, 200e9);
  EXPECT_EQ(a800->inter_node_bytes_per_s, 100e9);
  EXPECT_EQ(a800->nics_per_node, 4);
  EXPECT_EQ(a800->NodeOf(127), 15);
  EXPECT_TRUE(LoadTopology("h100x16").ok());
  const auto local = LoadTopology("local");
  ASSERT_TRUE(local.ok());
  EXPECT_EQ(local->NodeOf(0), local->NodeOf(1000));
  EXPECT_EQ(local->num_ranks(), std::nullopt);
  for (const std::string& name : TopologyPresetNames()) {
    EXPECT_TRUE(LoadTopology(name)->Validate().ok());
  }
}

TEST(Topology, FilesNameEqualOrListedNodes) {
  const auto equal = ParseTopology(
      R"({"nodes": 2, "ranks_per_node": 3, "nics_per_node": 2, "nic_bytes_per_s": 5e9,
          "intra_node_bytes_per_s": 2e11, "message_s": 1e-6})");
  ASSERT_TRUE(equal.ok()) << equal.status().ToString();
  EXPECT_EQ(equal->num_ranks(), 6);
  EXPECT_EQ(equal->intra_node_bytes_per_s, 2e11);
  EXPECT_EQ(equal->inter_node_bytes_per_s, 10e9);
  EXPECT_EQ(equal->message_s, 1e-6);
  EXPECT_THAT(equal->assumed, ElementsAre(Pair("latency_s", 10e-6), Pair("copy_bytes_per_s", 8e9),
                                          Pair("check_bytes_per_s", 16e9)));
  const auto listed = ParseTopology(R"({"name": "odd", "nodes": ["0-2+5", "3", "4"],
      "intra_node_bytes_per_s": 1e9, "inter_node_bytes_per_s": 1e8})");
  ASSERT_TRUE(listed.ok()) << listed.status().ToString();
  EXPECT_EQ(listed->num_ranks(), 6);
  EXPECT_EQ(listed->NodeOf(5), 0);
  EXPECT_EQ(listed->NodeOf(4), 2);
  EXPECT_TRUE(listed->CheckRank(5).ok());
  EXPECT_THAT(listed->CheckRank(6).message(), HasSubstr("ranks 0 to 5"));
}

TEST(Topology, BadFilesAreRefusedByName) {
  ExpectRefused("[]", "JSON object");
  ExpectRefused("{\"nodes\": 2,\n}", "not JSON: parse error at line 2, column 1");
  ExpectRefused(R"({"nodes": 2, "ranks_per_node": 4, "nodes": 3})", "key 'nodes' is given twice");
  ExpectRefused(R"({"ranks_per_node": 8})", "nodes: missing");
  ExpectRefused(R"({"nodes": 2})", "ranks_per_node: missing");
  ExpectRefused(R"({"nodes": 0, "ranks_per_node": 8})", "nodes: 0");
  ExpectRefused(R"({"nodes": 2.5, "ranks_per_node": 8})", "nodes: 2.5");
  ExpectRefused(R"({"nodes": 99999999999, "ranks_per_node": 8})", "nodes: 99999999999");
  ExpectRefused(R"({"nodes": 1048576, "ranks_per_node": 1048576})", "more than");
  ExpectRefused(R"({"nodes": ["0-3", "5-7"]})", "rank 4 is on no node");
  ExpectRefused(R"({"nodes": ["0-3", "3-6"]})", "rank 3 is on nodes 0 and 1");
  ExpectRefused(R"({"nodes": []})", "empty list");
  ExpectRefused(R"({"nodes": ["0-"]})", "nodes[0]");
  ExpectRefused(R"({"nodes": ["3-0"]})", "nodes[0]");
  ExpectRefused(R"({"nodes": ["0+"]})", "nodes[0]");
  ExpectRefused(R"({"nodes": ["-1"]})", "nodes[0]");
  ExpectRefused(R"({"nodes": ["0-1"], "ranks_per_node": 2})", "beside listed nodes");
  EXPECT_THAT(LoadTopology("/no/such/file").status().message(), HasSubstr("a800x16"));
}

TEST(Topology, OnlyARegularFileIsRead) {
  const std::string pipe = testing::TempDir() + fmt::format("dynatrain_topology_{}", ::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(LoadTopology(pipe).status().message(),
            fmt::format("topology {}: a pipe; right is a regular file of at most 16 MiB", pipe));
  EXPECT_THAT(LoadTopology("/dev/zero").status().message(), HasSubstr("a device; right is"));
  EXPECT_THAT(LoadTopology("/").status().message(), HasSubstr("a folder; right is"));
  ::unlink(pipe.c_str());
}

TEST(Topology, RatesAreThereAndWithinAFiniteRange) {
  const auto refuse = [](std::string_view nodes, std::string_view rates, std::string_view why) {
    ExpectRefused(fmt::format(R"({{{}, "ranks_per_node": 2{}}})", nodes, rates), why);
  };
  refuse(R"("nodes": 1)", "", "intra_node_bytes_per_s: missing");
  refuse(R"("nodes": 2)", R"(, "intra_node_bytes_per_s": 1e9)", "nic_bytes_per_s: missing");
  refuse(R"("nodes": 1)", R"(, "nvlink": 1)", "nvlink: unknown key");
  refuse(R"("nodes": 2)", R"(, "intra_node_bytes_per_s": 1e9, "nic_bytes_per_s": 1e9,
         "inter_node_bytes_per_s": 1e9)",
         "one of them");
  // The product with the NICs is checked too.
  refuse(R"("nodes": 2)", R"(, "intra_node_bytes_per_s": 1e9, "nic_bytes_per_s": 1e15,
         "nics_per_node": 2)",
         "inter_node_bytes_per_s: 2e+15; 1000 to 1e+15 bytes/s");
  const std::string others = R"(, "intra_node_bytes_per_s": 1e9, ")";
  constexpr const char* kRate = "1000 to 1e+15 bytes/s";
  constexpr const char* kTime = "1e-09 to 10 s";
  const std::pair<const char*, const char*> keys[] = {
      {"inter_node_bytes_per_s", kRate}, {"nic_bytes_per_s", kRate}, {"copy_bytes_per_s", kRate},
      {"check_bytes_per_s", kRate},      {"latency_s", kTime},       {"message_s", kTime}};
  for (const auto& [key, right] : keys) {
    for (const char* value : {"0", "-1", "1e-320", "1e+300", "\"fast\"", "null", "true"}) {
      refuse(R"("nodes": 1)", fmt::format("{}{}\": {}", others, key, value),
             fmt::format("{}: {}; {} are right", key, value, right));
    }
  }
  refuse(R"("nodes": 1)", R"(, "intra_node_bytes_per_s": 1e-320)",
         "intra_node_bytes_per_s: 1e-320");
  refuse(R"("nodes": 1)", R"(, "intra_node_bytes_per_s": 1e999)", "number overflow");
  Topology topology;
  topology.inter_node_bytes_per_s = std::numeric_limits<double>::infinity();
  EXPECT_THAT(topology.Validate().message(), HasSubstr("topology local: inter_node_bytes_per_s"));
  topology.inter_node_bytes_per_s = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(topology.Validate().ok());
}

TEST(Topology, FingerprintCoversEverything) {
  const Topology a;
  std::vector<Topology> others(8);
  others[0].name = "x";
  others[1].ranks_per_node = 8;
  others[2].intra_node_bytes_per_s = 1;
  others[3].inter_node_bytes_per_s = 1;
  others[4].nics_per_node = 2;
  others[5].latency_s = 1;
  others[6].nodes = 2;
  others[7].node_of = {0};
  EXPECT_EQ(a.Fingerprint(), Topology{}.Fingerprint());
  for (size_t i = 0; i < others.size(); ++i)
    EXPECT_NE(a.Fingerprint(), others[i].Fingerprint()) << i;
}

}  // namespace
}  // namespace dynatrain::planner
