#include <algorithm>
#include <cstdio>
#include <memory>

#include "dynatrain/apps/bench.h"
#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/flags.h"
#include "dynatrain/apps/output.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::apps {
namespace {

// Every rank is a process or a thread of this machine.
constexpr int32_t kMaxRanks = 64;

struct BenchFlags {
  BenchConfig config;
  std::string bind = "127.0.0.1:0";
  std::string namespaces;
  std::string json;
  std::string log_directory;
};

void AddFlags(CLI::App& app, BenchFlags* flags) {
  BenchConfig& config = flags->config;
  app.add_option("--model", config.model, "a preset (llama2-7b, ...) or a Hugging Face config.json")
      ->required();
  app.add_option("--from", config.from, "the layout now, such as dp=4,zero=1")->required();
  app.add_option("--to", config.to, "the layout to change to")->required();
  AddNumber(app, "--nproc", config.num_ranks, Range<int64_t>{1, kMaxRanks, "ranks"},
            "ranks (default: as many as the layouts need)");
  AddBytes(app, "--state", config.state_bytes,
           "narrow the model until its state, unsharded, takes at most this many bytes "
           "(default: 1GiB)");
  AddChoice(app, "--dtype", config.dtype, {"bf16", "fp32"},
            "of parameters: bf16 (with fp32 masters) or fp32")
      ->capture_default_str();
  AddChoice(app, "--transport", config.transport, {"gloo", "local"},
            "gloo (a process for each rank) or local (threads of this process)")
      ->capture_default_str();
  AddChoice(app, "--mode", config.mode, {"keep", "stream"},
            "keep (old state stays to the end) or stream (it goes phase by phase)")
      ->capture_default_str();
  AddBytes(app, "--budget", config.budget,
           "most extra memory of a rank, such as 64MiB (default: no limit)");
  AddChoice(app, "--verify", config.verify, {"off", "moved", "full"}, "off, moved or full")
      ->capture_default_str();
  AddNumber(app, "--repeat", config.repeat, Range<int64_t>{1, 1000, "passes"},
            "counted passes, after one that is not")
      ->capture_default_str();
  app.add_option("--topology", config.topology,
                 "local, or a preset or file with the nodes and links to order and predict by")
      ->capture_default_str();
  app.add_option("--interface", config.interface, "network interface that ranks use")
      ->capture_default_str();
  app.add_option("--bind", flags->bind, "address of the store that ranks find each other through")
      ->capture_default_str();
  app.add_option("--namespaces", flags->namespaces,
                 "run the ranks, in blocks of equal size, in these network namespaces (A+B+C); "
                 "needs root");
  app.add_flag("--json{-}", flags->json, kJsonHelp);
  app.add_option("--log-dir", flags->log_directory, "keep the ranks' logs here");
}

Status ResolveRanks(BenchConfig* config) {
  int32_t needed = 1;
  for (const std::string& spec : {config->from, config->to}) {
    const Result<vps::Layout> layout = vps::ParseLayout(spec);
    if (!layout.ok()) return layout.status().Within(fmt::format("layout {}", spec));
    for (const RankId rank : layout->Ranks()) needed = std::max(needed, rank + 1);
  }
  if (config->num_ranks == 0) config->num_ranks = needed;
  if (config->num_ranks >= needed && config->num_ranks <= kMaxRanks) return Status::Ok();
  return InvalidArgument("--nproc {}: the layouts need {}, and at most {} start on this machine",
                         config->num_ranks, needed, kMaxRanks);
}

Status DealNamespaces(const std::string& text, BenchConfig* config) {
  if (text.empty()) return Status::Ok();
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  const auto count = static_cast<int32_t>(names.size());
  if (config->transport != "gloo" || config->num_ranks % count != 0) {
    return InvalidArgument("--namespaces {}: {} ranks over {} do not divide into {} namespaces",
                           text, config->num_ranks, config->transport, count);
  }
  for (RankId rank = 0; rank < config->num_ranks; ++rank)
    config->namespaces.push_back(names[static_cast<size_t>(rank / (config->num_ranks / count))]);
  return Status::Ok();
}

Status Show(const BenchFlags& flags, const BenchFigures& figures) {
  if (flags.json != "-") std::fputs(FiguresAsText(figures).c_str(), stdout);
  return ShowJson(flags.json, FiguresAsJson(figures));
}

Status Bench(const BenchFlags& flags) {
  BenchOptions options;
  options.config = flags.config;
  options.log_directory = flags.log_directory;
  const BenchConfig& asked = flags.config;
  if (asked.transport == "gloo") {
    DT_RETURN_IF_ERROR(CheckUtf8({asked.model, asked.topology, asked.interface, flags.namespaces}));
  }
  DT_ASSIGN_OR_RETURN(options.bind, ParseAddress(flags.bind));
  DT_RETURN_IF_ERROR(ResolveRanks(&options.config));
  DT_RETURN_IF_ERROR(DealNamespaces(flags.namespaces, &options.config));
  DT_ASSIGN_OR_RETURN(const BenchFigures figures, RunBench(options));
  return Show(flags, figures);
}

}  // namespace

void AddBenchCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "bench", "measure a change of layout on this machine against the raw rate of the transport");
  auto flags = std::make_shared<BenchFlags>();
  AddFlags(*command, flags.get());
  command->callback([flags, exit_code] { *exit_code = ExitCode("bench", Bench(*flags)); });
}

}  // namespace dynatrain::apps
