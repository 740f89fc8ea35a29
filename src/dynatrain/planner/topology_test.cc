#include "dynatrain/planner/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dynatrain::planner {
namespace {

using testing::HasSubstr;

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
      R"({"nodes": 2, "ranks_per_node": 3, "nics_per_node": 2, "nic_bytes_per_s": 5e9})");
  ASSERT_TRUE(equal.ok()) << equal.status().ToString();
  EXPECT_EQ(equal->num_ranks(), 6);
  EXPECT_EQ(equal->inter_node_bytes_per_s, 10e9);
  const auto listed = ParseTopology(R"({"name": "odd", "nodes": ["0-2+5", "3", "4"]})");
  ASSERT_TRUE(listed.ok()) << listed.status().ToString();
  EXPECT_EQ(listed->num_ranks(), 6);
  EXPECT_EQ(listed->NodeOf(5), 0);
  EXPECT_EQ(listed->NodeOf(4), 2);
  EXPECT_TRUE(listed->CheckRank(5).ok());
  EXPECT_THAT(listed->CheckRank(6).message(), HasSubstr("ranks 0 to 5"));
}

TEST(Topology, BadFilesAreRefusedByName) {
  ExpectRefused("[]", "JSON object");
  ExpectRefused("{", "JSON object");
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
  ExpectRefused(R"({"nodes": 1, "ranks_per_node": 2, "latency_s": 0})", "latency_s: 0");
  ExpectRefused(R"({"nodes": 1, "ranks_per_node": 2, "intra_node_bytes_per_s": -1})", "-1");
  ExpectRefused(R"({"nodes": 1, "ranks_per_node": 2, "nic_bytes_per_s": "fast"})", "fast");
  ExpectRefused(R"({"nodes": 1, "ranks_per_node": 2, "nvlink": 1})", "nvlink: unknown key");
  EXPECT_THAT(LoadTopology("/no/such/file").status().message(), HasSubstr("a800x16"));
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
