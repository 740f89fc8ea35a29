#include "dynatrain/planner/topology.h"

#include <bit>
#include <charconv>
#include <set>
#include <span>

#include <fmt/ranges.h>

#include "dynatrain/base/hash.h"
#include "dynatrain/base/json.h"
#include "dynatrain/base/text.h"
#include "dynatrain/base/text_file.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::planner {
namespace {

using Json = nlohmann::json;

constexpr int32_t kMostRanks = vps::kMaxWorldSize;

// A800: NVLink 400 GB/s in both directions together (NVIDIA A800 datasheet), so 200 each way; four
// NICs of 200 Gbit/s per node. H100: NVLink 900 GB/s in both directions together and eight
// ConnectX-7 NICs of 400 Gbit/s per node (NVIDIA DGX H100 datasheet). Their memories' 2.04 and 3.35
// TB/s are read and written by a copy, only read by a hash: half and all of them at best. Latencies
// and costs per message are assumptions.
std::vector<Topology> Presets() {
  return {{.name = "a800x16",
           .ranks_per_node = 8,
           .intra_node_bytes_per_s = 200e9,
           .inter_node_bytes_per_s = 100e9,
           .nics_per_node = 4,
           .copy_bytes_per_s = 1.0e12,
           .check_bytes_per_s = 2.0e12,
           .nodes = 16},
          {.name = "h100x16",
           .ranks_per_node = 8,
           .intra_node_bytes_per_s = 450e9,
           .inter_node_bytes_per_s = 400e9,
           .nics_per_node = 8,
           .copy_bytes_per_s = 1.6e12,
           .check_bytes_per_s = 3.3e12,
           .nodes = 16},
          {}};
}

// What a number of a topology may be: from a modem to far beyond any bus, from a nanosecond up.
struct Range {
  double least;
  double most;
  std::string_view unit;

  bool Holds(double value) const { return value >= least && value <= most; }  // NaN: no
};
constexpr Range kRate{1e3, 1e15, "bytes/s"};
constexpr Range kTime{1e-9, 10, "s"};

struct RateKey {
  const char* key;
  double Topology::* member;
  const Range& range;
};
// What a file must tell, where anything flows over it.
constexpr RateKey kLinkRates[] = {
    {"intra_node_bytes_per_s", &Topology::intra_node_bytes_per_s, kRate},
    {"inter_node_bytes_per_s", &Topology::inter_node_bytes_per_s, kRate}};
constexpr RateKey kHostRates[] = {{"latency_s", &Topology::latency_s, kTime},
                                  {"message_s", &Topology::message_s, kTime},
                                  {"copy_bytes_per_s", &Topology::copy_bytes_per_s, kRate},
                                  {"check_bytes_per_s", &Topology::check_bytes_per_s, kRate}};

std::string Told(const Json& value) { return Shortened(DumpJson(value)); }

Status CheckNumber(std::string_view key, const Json& value, const Range& range) {
  if (value.is_number() && range.Holds(value.get<double>())) return Status::Ok();
  return InvalidArgument("{}: {}; {:g} to {:g} {} are right", key, Told(value), range.least,
                         range.most, range.unit);
}

Result<int32_t> PositiveInteger(const Json& value, const std::string& key) {
  const bool fits = value.is_number_integer() && value >= 1 && value <= kMostRanks;
  if (!fits) {
    return InvalidArgument("{}: {}; a whole number of 1 to {} is right", key, Told(value),
                           kMostRanks);
  }
  return value.get<int32_t>();
}

// "0-7+12": appends the ranks of one node.
Status AppendRanks(std::string_view text, int32_t node, std::vector<RankId>* ranks) {
  const auto wrong = [&] {
    return InvalidArgument("nodes[{}]: \"{}\"; ranks such as \"0-7\" or \"0-3+6\" are right", node,
                           text);
  };
  std::string_view rest = text;
  while (true) {
    const std::string_view part = rest.substr(0, rest.find('+'));
    RankId bounds[2] = {0, 0};
    const char* at = part.data();
    const char* const end = part.data() + part.size();
    for (int i = 0; i < 2; ++i) {
      const auto [stop, error] = std::from_chars(at, end, bounds[i]);
      if (error != std::errc() || bounds[i] < 0 || bounds[i] >= kMostRanks) return wrong();
      at = stop;
      if (i == 0 && at == end) {
        bounds[1] = bounds[0];
        break;
      }
      if (i == 0 && *at++ != '-') return wrong();
    }
    if (at != end || bounds[1] < bounds[0]) return wrong();
    if (static_cast<int64_t>(ranks->size()) + bounds[1] - bounds[0] >= kMostRanks) return wrong();
    for (RankId rank = bounds[0]; rank <= bounds[1]; ++rank) ranks->push_back(rank);
    if (part.size() == rest.size()) return Status::Ok();
    rest.remove_prefix(part.size() + 1);
  }
}

Status ReadListedNodes(const Json& list, Topology* topology) {
  std::vector<std::vector<RankId>> nodes;
  size_t total = 0;
  for (const Json& entry : list) {
    const auto node = static_cast<int32_t>(nodes.size());
    if (!entry.is_string()) {
      return InvalidArgument("nodes[{}]: {}; ranks such as \"0-7\" are right", node, Told(entry));
    }
    nodes.emplace_back();
    DT_RETURN_IF_ERROR(AppendRanks(entry.get<std::string>(), node, &nodes.back()));
    total += nodes.back().size();
  }
  if (nodes.empty()) return InvalidArgument("nodes: an empty list; at least one node is right");
  topology->nodes = static_cast<int32_t>(nodes.size());
  topology->node_of.assign(total, -1);
  for (size_t node = 0; node < nodes.size(); ++node) {
    for (const RankId rank : nodes[node]) {
      if (static_cast<size_t>(rank) >= total) continue;  // leaves a hole, or makes a double
      int32_t& entry = topology->node_of[static_cast<size_t>(rank)];
      if (entry >= 0) return InvalidArgument("rank {} is on nodes {} and {}", rank, entry, node);
      entry = static_cast<int32_t>(node);
    }
  }
  for (size_t rank = 0; rank < total; ++rank) {
    if (topology->node_of[rank] >= 0) continue;
    return InvalidArgument("rank {} is on no node: the {} listed ranks must be 0 to {}", rank,
                           total, total - 1);
  }
  return Status::Ok();
}

Status ReadNodes(const Json& json, Topology* topology) {
  const auto nodes = json.find("nodes");
  const auto size = json.find("ranks_per_node");
  if (nodes == json.end()) {
    return InvalidArgument("nodes: missing; a number, or a list such as [\"0-7\", \"8-15\"]");
  }
  if (nodes->is_array()) {
    if (size != json.end()) {
      return InvalidArgument("ranks_per_node: {} beside listed nodes; leave it out", Told(*size));
    }
    return ReadListedNodes(*nodes, topology);
  }
  if (size == json.end()) return InvalidArgument("ranks_per_node: missing");
  DT_ASSIGN_OR_RETURN(topology->nodes, PositiveInteger(*nodes, "nodes"));
  DT_ASSIGN_OR_RETURN(topology->ranks_per_node, PositiveInteger(*size, "ranks_per_node"));
  if (int64_t{topology->nodes} * topology->ranks_per_node > kMostRanks) {
    return InvalidArgument("nodes: {} of {} ranks are more than {} ranks", topology->nodes,
                           topology->ranks_per_node, kMostRanks);
  }
  return Status::Ok();
}

// The rate between nodes, told as such or for each NIC.
Status ReadNodeRate(const Json& json, Topology* topology) {
  if (const auto nics = json.find("nics_per_node"); nics != json.end()) {
    DT_ASSIGN_OR_RETURN(topology->nics_per_node, PositiveInteger(*nics, "nics_per_node"));
  }
  const auto whole = json.find("inter_node_bytes_per_s");
  const auto nic = json.find("nic_bytes_per_s");
  if (whole != json.end() && nic != json.end()) {
    return InvalidArgument("nic_bytes_per_s and inter_node_bytes_per_s: one of them is right");
  }
  if (whole != json.end()) {
    DT_RETURN_IF_ERROR(CheckNumber("inter_node_bytes_per_s", *whole, kRate));
    topology->inter_node_bytes_per_s = whole->get<double>();
  } else if (nic != json.end()) {
    DT_RETURN_IF_ERROR(CheckNumber("nic_bytes_per_s", *nic, kRate));
    topology->inter_node_bytes_per_s = nic->get<double>() * topology->nics_per_node;
  } else if (topology->nodes > 1) {
    return InvalidArgument(
        "nic_bytes_per_s: missing, as is inter_node_bytes_per_s; {} nodes need one of them",
        topology->nodes);
  }
  return Status::Ok();
}

Status ReadRates(const Json& json, Topology* topology) {
  const auto inside = json.find("intra_node_bytes_per_s");
  if (inside == json.end()) {
    return InvalidArgument("intra_node_bytes_per_s: missing; {:g} to {:g} {} are right",
                           kRate.least, kRate.most, kRate.unit);
  }
  DT_RETURN_IF_ERROR(CheckNumber("intra_node_bytes_per_s", *inside, kRate));
  topology->intra_node_bytes_per_s = inside->get<double>();
  DT_RETURN_IF_ERROR(ReadNodeRate(json, topology));
  for (const auto& [key, member, range] : kHostRates) {
    const auto value = json.find(key);
    if (value == json.end()) {
      topology->assumed.emplace_back(key, topology->*member);
      continue;
    }
    DT_RETURN_IF_ERROR(CheckNumber(key, *value, range));
    topology->*member = value->get<double>();
  }
  return Status::Ok();
}

}  // namespace

std::optional<int32_t> Topology::num_ranks() const {
  if (!node_of.empty()) return static_cast<int32_t>(node_of.size());
  if (nodes == 0) return std::nullopt;
  return nodes * ranks_per_node;
}

Status Topology::CheckRank(RankId rank) const {
  const std::optional<int32_t> ranks = num_ranks();
  if (rank >= 0 && (!ranks || rank < *ranks)) return Status::Ok();
  return InvalidArgument("topology {}: rank {} is on no node; there are ranks 0 to {}", name, rank,
                         ranks.value_or(kMostRanks) - 1);
}

Status Topology::Validate() const {
  if (ranks_per_node < 1 || nics_per_node < 1 || nodes < 0) {
    return InvalidArgument(
        "topology {}: {} nodes, {} ranks per node, {} NICs per node; at least 1 is right", name,
        nodes, ranks_per_node, nics_per_node);
  }
  for (const auto& keys :
       {std::span<const RateKey>(kLinkRates), std::span<const RateKey>(kHostRates)}) {
    for (const auto& [key, member, range] : keys) {
      DT_RETURN_IF_ERROR(
          CheckNumber(key, this->*member, range).Within(fmt::format("topology {}", name)));
    }
  }
  if (node_of.empty()) return Status::Ok();
  std::set<int32_t> used(node_of.begin(), node_of.end());
  if (*used.begin() != 0 || *used.rbegin() != nodes - 1 ||
      used.size() != static_cast<size_t>(nodes)) {
    return InvalidArgument("topology {}: the ranks lie on nodes {}; all of 0 to {} are right", name,
                           fmt::join(used, ", "), nodes - 1);
  }
  return Status::Ok();
}

uint64_t Topology::Fingerprint() const {
  Hasher hasher;
  hasher.Add(name)
      .Add(ranks_per_node)
      .Add(std::bit_cast<uint64_t>(intra_node_bytes_per_s))
      .Add(std::bit_cast<uint64_t>(inter_node_bytes_per_s))
      .Add(nics_per_node)
      .Add(std::bit_cast<uint64_t>(latency_s))
      .Add(std::bit_cast<uint64_t>(message_s))
      .Add(std::bit_cast<uint64_t>(copy_bytes_per_s))
      .Add(std::bit_cast<uint64_t>(check_bytes_per_s))
      .Add(nodes)
      .Add(node_of.size());
  for (const int32_t node : node_of) hasher.Add(node);
  return hasher.hash();
}

Result<Topology> ParseTopology(std::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  if (!json.is_object()) return InvalidArgument("a topology is a JSON object");
  const std::set<std::string> known = {"name",
                                       "nodes",
                                       "ranks_per_node",
                                       "intra_node_bytes_per_s",
                                       "nics_per_node",
                                       "nic_bytes_per_s",
                                       "latency_s",
                                       "inter_node_bytes_per_s",
                                       "message_s",
                                       "copy_bytes_per_s",
                                       "check_bytes_per_s"};
  for (const auto& [key, value] : json.items()) {
    if (!known.contains(key)) {
      return InvalidArgument("{}: unknown key; {} are known", Shortened(key),
                             fmt::join(known, ", "));
    }
  }
  Topology topology;
  topology.name = "file";
  if (const auto name = json.find("name"); name != json.end()) {
    if (!name->is_string()) return InvalidArgument("name: {}; a text is right", Told(*name));
    topology.name = name->get<std::string>();
  }
  DT_RETURN_IF_ERROR(ReadNodes(json, &topology));
  DT_RETURN_IF_ERROR(ReadRates(json, &topology));
  DT_RETURN_IF_ERROR(topology.Validate());
  return topology;
}

Result<Topology> LoadTopology(const std::string& preset_or_path) {
  for (const Topology& preset : Presets()) {
    if (preset.name == preset_or_path) return preset;
  }
  const Result<std::string> text = ReadTextFile(preset_or_path);
  if (text.status().code() == StatusCode::kNotFound) {
    return NotFound("topology {}: no preset ({}) and no file: {}", preset_or_path,
                    fmt::join(TopologyPresetNames(), ", "), text.status().message());
  }
  Result<Topology> topology = text.ok() ? ParseTopology(*text) : Result<Topology>(text.status());
  if (!topology.ok()) return topology.status().Within(fmt::format("topology {}", preset_or_path));
  return topology;
}

std::vector<std::string> TopologyPresetNames() {
  std::vector<std::string> names;
  for (const Topology& preset : Presets()) names.push_back(preset.name);
  return names;
}

}  // namespace dynatrain::planner
