#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>

#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/directory_lock.h"
#include "dynatrain/apps/flags.h"
#include "dynatrain/apps/job_setup.h"
#include "dynatrain/apps/launcher.h"
#include "dynatrain/apps/memory_need.h"
#include "dynatrain/apps/nodes.h"
#include "dynatrain/apps/output.h"
#include "dynatrain/apps/resume_check.h"
#include "dynatrain/apps/signals.h"
#include "dynatrain/base/text.h"
#include "dynatrain/io/checkpoint.h"
#include "dynatrain/io/file.h"

namespace dynatrain::apps {
namespace {

// So many rank processes start on one machine at most.
constexpr int32_t kMaxRanks = 256;
constexpr int64_t kMaxSteps = std::numeric_limits<int64_t>::max();
// Tokens of a step fit into 64 bits.
constexpr int64_t kMaxSequences = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr double kLongestStepSeconds = 86400;
constexpr double kShortestJoinSeconds = 0.1;

struct TrainFlags {
  JobConfig config;
  std::optional<int32_t> nproc;  // none: as many as the layouts need
  std::vector<std::string> switches;
  std::string transport = "gloo";
  std::string interface;
  std::string host;
  double join_timeout = 120;
  std::string control;
  std::string json;
  std::string log_directory;
};

void AddFlags(CLI::App& app, TrainFlags* flags) {
  JobConfig& config = flags->config;
  app.add_option("--model", config.model,
                 "a preset (tiny-llama, ...) or a Hugging Face config.json")
      ->required();
  app.add_option("--data", config.data,
                 "a text, read as bytes, or token ids: a .bin of llm.c or a .bin/.idx of Megatron")
      ->required();
  app.add_option("--layout", config.layout, "the first layout, such as tp=2,pp=2,dp=1,zero=1")
      ->required();
  const Range<int64_t> steps{1, kMaxSteps, "steps"};
  AddNumber(app, "--steps", config.steps, steps,
            "steps of the whole training, which the learning rate's schedule is made for")
      ->required();
  AddNumber(app, "--stop-after", config.stop_after, steps, "end this run after an earlier step");
  AddNumber(app, "--nproc", flags->nproc, Range<int64_t>{1, kMaxRanks, "processes"},
            "rank processes to start here (default: as many as the layouts need; with several "
            "launchers, 1 for each)");
  app.add_option("--interface", flags->interface,
                 "network interface on which this node's ranks listen (default: lo; with several "
                 "launchers, the one that leads to MASTER_ADDR)");
  app.add_option("--host", flags->host, "address of this machine instead of an interface");
  AddNumber(app, "--join-timeout", flags->join_timeout,
            Range<double>{kShortestJoinSeconds, kLongestStepSeconds, "seconds"},
            "seconds that several launchers of one job wait for each other")
      ->capture_default_str();
  app.add_option("--switch", flags->switches,
                 "STEP:SPEC: once STEP has ended, ask for this layout; may be given often");
  app.add_flag("--exact-switches", config.exact_switches,
               "move each --switch right after its STEP (0: before the first): training waits for "
               "its preparation");
  AddNumber(app, "--step-timeout", config.step_timeout,
            Range<double>{0.1, kLongestStepSeconds, "seconds"},
            "seconds that a rank waits for another one within a step before the job ends")
      ->capture_default_str();
  const Range<int64_t> sequences{1, kMaxSequences, "sequences"};
  AddNumber(app, "--global-batch", config.global_batch, sequences, "sequences per step")
      ->capture_default_str();
  AddNumber(app, "--micro-batch", config.micro_batch, sequences, "sequences per micro-batch")
      ->capture_default_str();
  AddNumber(app, "--seq", config.seq, Range<int64_t>{1, kMaxTokens, "tokens"},
            "tokens per sequence")
      ->capture_default_str();
  AddNumber(app, "--lr", config.lr, Range<double>{0, std::numeric_limits<double>::max(), ""},
            "peak learning rate")
      ->capture_default_str();
  AddNumber(app, "--seed", config.seed,
            Range<uint64_t>{0, std::numeric_limits<uint64_t>::max(), ""},
            "of weights and data order")
      ->capture_default_str();
  AddChoice(app, "--dtype", config.dtype, {"fp32", "bf16"},
            "of parameters and of the gradients that dp positions exchange: fp32, or bf16 with "
            "fp32 masters and moments")
      ->capture_default_str();
  app.add_flag("--derive", config.derive,
               "switches compute bf16 parameters from their masters where a rank has those, "
               "instead of moving them");
  AddChoice(app, "--mode", config.mode, {"keep", "stream"},
            "of switches: keep (the old state stays until commit) or stream (it goes phase by "
            "phase: little extra memory, no way back)")
      ->capture_default_str();
  AddBytes(app, "--budget", config.budget,
           "most extra memory of a rank in a switch, such as 64MiB (default: no limit)");
  AddChoice(app, "--verify", config.verify, {"off", "moved", "full"},
            "of switches: off, moved or full")
      ->capture_default_str();
  AddChoice(app, "--transport", flags->transport, {"gloo"}, "of switches: gloo")
      ->capture_default_str();
  app.add_option("--save", config.save,
                 "directory for a checkpoint after the last step, and before leaving on SIGINT or "
                 "SIGTERM");
  AddNumber(app, "--save-every", config.save_every, steps,
            "save a checkpoint after every N steps too");
  app.add_option("--resume", config.resume,
                 "directory of checkpoints to go on from, in any layout");
  app.add_option(
      "--control", flags->control,
      "serve `dynatrain switch` and `status` on this loopback HOST:PORT (port 0: a free one)");
  app.add_flag("--json{-}", flags->json,
               "JSON lines to standard output, or to a file with --json=FILE");
  app.add_option("--log-dir", flags->log_directory, "keep the ranks' logs here");
  app.add_option(
      "--dump-state", config.dump_state,
      "write all state just before and after each switch to this directory, for checking");
  app.add_flag("--probe-loss", config.probe_loss,
               "evaluate one fixed batch just before and after each switch");
  app.add_flag("--report-samples", config.report_samples,
               "tell in the JSON lines which samples each rank read in each step");
  AddChoice(app, "--fill", config.fill, {"zero", "nan"},
            "zero or nan: what a switch's new memory holds before state comes, for checking")
      ->capture_default_str();
}

// The number of processes that all layouts together need, or the number asked for.
Result<int32_t> NumRanks(const TrainFlags& flags, int32_t launchers) {
  if (flags.nproc) return *flags.nproc * launchers;
  if (launchers > 1) return launchers;
  std::vector<std::string> specs = {flags.config.layout};
  for (const ScheduledSwitch& s : flags.config.switches) specs.push_back(s.spec);
  int32_t needed = 1;
  for (const std::string& spec : specs) {
    const Result<vps::Layout> layout = vps::ParseLayout(spec);
    if (!layout.ok()) return layout.status().Within(fmt::format("layout {}", Shortened(spec)));
    for (const RankId rank : layout->Ranks()) needed = std::max(needed, rank + 1);
  }
  if (needed > kMaxRanks) {
    return InvalidArgument("the layouts need {} ranks; at most {} start on this machine", needed,
                           kMaxRanks);
  }
  return needed;
}

// Two switches cannot both be the next thing after one step. `switches` are in order of steps.
Status CheckDistinctSteps(const std::vector<ScheduledSwitch>& switches) {
  const auto twice = std::ranges::adjacent_find(switches, {}, &ScheduledSwitch::step);
  if (twice == switches.end()) return {};
  return InvalidArgument(
      "--exact-switches: two switches right after step {}; give each a step of its own",
      twice->step);
}

// Makes a directory that results go to, and proves now rather than after the last step that it can
// be written.
Status CheckWritable(std::string_view flag, const std::string& directory) {
  if (directory.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string probe = directory + "/.dynatrain-write-test";
  const Status written =
      error ? Unavailable("{}", error.message()) : io::WriteFileAtomically(probe, "x");
  std::filesystem::remove(probe, error);
  if (written.ok()) return {};
  return Unavailable("{} {}: cannot write there: {}", flag, directory, written.message());
}

void Note(const std::string& line) { std::fprintf(stderr, "note: %s\n", line.c_str()); }

// A job whose input is right. The locks are held until it has ended.
struct CheckedJob {
  LaunchOptions launch;
  DirectoryLock save, dump;
};

Result<CheckedJob> CheckJob(TrainFlags& flags, const NodeOptions& node) {
  JobConfig& config = flags.config;
  DT_RETURN_IF_ERROR(CheckUtf8(
      {config.model, config.data, config.layout, config.save, config.resume, config.dump_state}));
  for (const std::string& text : flags.switches) {
    DT_ASSIGN_OR_RETURN(ScheduledSwitch scheduled, ParseScheduledSwitch(text));
    config.switches.push_back(std::move(scheduled));
  }
  std::ranges::stable_sort(config.switches, {}, &ScheduledSwitch::step);
  DT_ASSIGN_OR_RETURN(config.num_ranks, NumRanks(flags, node.count));
  DT_ASSIGN_OR_RETURN(const JobSetup setup, JobSetup::Make(config));
  DT_ASSIGN_OR_RETURN(const vps::Layout first, setup.CheckedLayout(config.layout));
  config.layout = first.ToString();
  for (ScheduledSwitch& scheduled : config.switches) {
    Result<vps::Layout> layout = setup.CheckedLayout(scheduled.spec);
    if (!layout.ok()) {
      return layout.status().Within(
          fmt::format("--switch {}:{}", scheduled.step, Shortened(scheduled.spec)));
    }
    if (scheduled.step >= config.last_step()) {
      return InvalidArgument(
          "--switch {}:{}: the job ends after step {}; a switch needs a step after it",
          scheduled.step, Shortened(scheduled.spec), config.last_step());
    }
    scheduled.spec = layout->ToString();
  }
  if (config.exact_switches) DT_RETURN_IF_ERROR(CheckDistinctSteps(config.switches));
  DT_RETURN_IF_ERROR(CheckWritable("--save", config.save));
  DT_RETURN_IF_ERROR(CheckWritable("--dump-state", config.dump_state));
  std::error_code ignored;
  const bool one = std::filesystem::equivalent(config.save, config.dump_state, ignored);
  DT_ASSIGN_OR_RETURN(DirectoryLock save, DirectoryLock::Take("--save", config.save));
  DT_ASSIGN_OR_RETURN(DirectoryLock dump,
                      DirectoryLock::Take("--dump-state", one ? "" : config.dump_state));
  if (!config.save.empty()) {
    DT_ASSIGN_OR_RETURN(const std::vector<std::string> repaired,
                        io::RepairCheckpoints(config.save));
    for (const std::string& line : repaired) Note(line);
  }
  std::vector<std::string> notes;
  DT_RETURN_IF_ERROR(CheckResume(setup, &config, &notes));
  for (const std::string& line : notes) Note(line);
  DT_ASSIGN_OR_RETURN(const std::string memory,
                      CheckMemory(config, setup, 0, config.num_ranks / node.count));
  LaunchOptions launch{.config = config,
                       .control = {},
                       .json = {},
                       .log_directory = flags.log_directory,
                       .note = memory,
                       .node = node};
  if (!flags.control.empty()) {
    const Result<Address> control = ParseAddress(flags.control);
    if (!control.ok()) return control.status().Within("--control");
    launch.control = *control;
  }
  if (!flags.json.empty()) launch.json = flags.json;
  return CheckedJob{std::move(launch), std::move(save), std::move(dump)};
}

Status Train(TrainFlags& flags) {
  const auto join_timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(flags.join_timeout));
  DT_ASSIGN_OR_RETURN(const NodeOptions node, FindNode(flags.interface, flags.host, join_timeout));
  if (!node.first()) return LaunchFurther(node, flags.log_directory);
  const Result<CheckedJob> job = CheckJob(flags, node);
  if (job.ok()) return Launch(job->launch);
  RefuseOthers(node, job.status());
  return job.status();
}

}  // namespace

void AddTrainCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("train", "train a model on local processes");
  auto flags = std::make_shared<TrainFlags>();
  AddFlags(*command, flags.get());
  command->callback([flags, exit_code] {
    *exit_code = ExitCode("train", Train(*flags));
    if (*exit_code != 0 && StopSignal() != 0) *exit_code = 128 + StopSignal();
  });
}

}  // namespace dynatrain::apps
