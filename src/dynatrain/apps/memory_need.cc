#include "dynatrain/apps/memory_need.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <vector>

#include "dynatrain/apps/progress.h"
#include "dynatrain/base/text.h"

namespace dynatrain::apps {
namespace {

constexpr ByteCount kFloatBytes = 4;

// Memory of one rank process before it holds anything: code, heap and libraries of its own.
constexpr ByteCount kProcessBytes = ByteCount{40} << 20;

// What the backward pass of one micro-batch needs of one layer, and of the head, on one rank: the
// inputs of norms and products at least.
ByteCount ActivationBytes(const JobSetup& setup, const vps::Layout& layout) {
  const models::ModelConfig& model = setup.model;
  const int64_t tokens = setup.trainer.micro_batch * setup.trainer.seq;
  const int64_t layers = model.layers / layout.pp;
  const int64_t per_layer = 4 * model.hidden + 3 * model.ffn / layout.tp;
  return tokens * kFloatBytes * layers * per_layer;
}

struct Needed {
  std::string spec;
  MemoryNeed need;
};

}  // namespace

MemoryNeed NeedOf(const JobSetup& setup, const vps::LayoutShardMap& map, RankId first,
                  int32_t count) {
  MemoryNeed need;
  for (const RankId rank : map.layout().Ranks()) {
    if (rank < first || rank - first >= count) continue;
    for (const vps::Buffer& buffer : map.BuffersOf(rank)) {
      need.state += buffer.bytes();
      if (buffer.kind != vps::Kind::kParam) continue;
      need.gradients += buffer.elems * kFloatBytes;
      // The fp32 copy that the model computes with.
      if (buffer.dtype == vps::DType::kBF16) need.state += buffer.elems * kFloatBytes;
    }
    need.activations += ActivationBytes(setup, map.layout());
  }
  return need;
}

Result<ByteCount> MemAvailable(std::string_view meminfo) {
  constexpr std::string_view kName = "MemAvailable:";
  const size_t at = meminfo.find(kName);
  if (at == std::string_view::npos) return NotFound("no {} in /proc/meminfo", kName);
  std::string_view rest = meminfo.substr(at + kName.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  ByteCount kib = 0;
  if (std::from_chars(rest.data(), rest.data() + rest.size(), kib).ec != std::errc()) {
    return NotFound("{} of /proc/meminfo is no number", kName);
  }
  return kib * 1024;
}

Result<ByteCount> AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return MemAvailable(text);
}

Result<std::string> CheckMemory(const JobConfig& config, const JobSetup& setup, RankId first,
                                int32_t count) {
  DT_ASSIGN_OR_RETURN(const ByteCount available, AvailableMemory());
  std::vector<std::string> specs = {config.layout};
  for (const ScheduledSwitch& scheduled : config.switches) specs.push_back(scheduled.spec);
  const ByteCount processes = count * kProcessBytes;
  Needed largest;
  ByteCount switching = 0, last_state = 0;
  for (const std::string& spec : specs) {
    DT_ASSIGN_OR_RETURN(const vps::Layout layout, setup.CheckedLayout(spec));
    DT_ASSIGN_OR_RETURN(const auto map, vps::LayoutShardMap::Make(setup.catalog, layout));
    const MemoryNeed need = NeedOf(setup, *map, first, count);
    switching = std::max(switching, last_state + need.total() + processes);
    last_state = need.state;
    if (need.total() >= largest.need.total()) largest = {spec, need};
  }
  const MemoryNeed& need = largest.need;
  const std::string told = fmt::format(
      "layout {} on {} processes here needs {} at least: {} of parameters and moments, {} of "
      "gradients, {} of activations, {} of the processes themselves; {} is available",
      Shortened(largest.spec), count, FormatBytes(need.total() + processes),
      FormatBytes(need.state), FormatBytes(need.gradients), FormatBytes(need.activations),
      FormatBytes(processes), FormatBytes(available));
  if (need.total() + processes > available) {
    return ResourceExhausted(
        "not enough memory: {}; right is a smaller model, fewer replicas (dp) or zero=1", told);
  }
  const std::string least = FormatBytes(need.total() + processes);
  if (config.switches.empty()) {
    return fmt::format(
        "memory: {} at least, {} while switching to a layout of as much state; {} is available",
        least, FormatBytes(need.total() + processes + need.state), FormatBytes(available));
  }
  return fmt::format(
      "memory: {} at least, {} with the old and the new state of a switch; {} is available", least,
      FormatBytes(switching), FormatBytes(available));
}

}  // namespace dynatrain::apps
