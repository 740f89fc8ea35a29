// JobConfig: what `dynatrain train` was asked for, as one value that travels from the launcher to
// every rank.
#ifndef DYNATRAIN_APPS_JOB_CONFIG_H_
#define DYNATRAIN_APPS_JOB_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::apps {

// "STEP:SPEC": asked for once STEP has ended; state moves as soon as all ranks are prepared.
struct ScheduledSwitch {
  int64_t step = 0;
  std::string spec;
};
Result<ScheduledSwitch> ParseScheduledSwitch(const std::string& text);

struct JobConfig {
  std::string model;                      // preset or path of a Hugging Face config.json
  std::string data;                       // path of a text file
  std::string layout;                     // canonical SPEC of the first layout
  std::vector<ScheduledSwitch> switches;  // by step
  int32_t num_ranks = 1;

  int64_t steps = 0;       // of the whole training, which the learning rate's schedule is made for
  int64_t stop_after = 0;  // the last step of this run; 0: steps
  int64_t last_step() const { return stop_after == 0 ? steps : stop_after; }
  int64_t global_batch = 8;  // sequences per step
  int64_t micro_batch = 1;   // sequences per micro-batch
  int64_t seq = 128;         // tokens per sequence
  double lr = 1e-3;
  uint64_t seed = 1;

  std::string dtype = "fp32";  // of parameters: fp32, or bf16 with fp32 masters
  bool derive = false;         // switches compute bf16 parameters from masters where they can
  std::string mode = "keep";   // of switches
  ByteCount budget = -1;       // extra bytes of a rank in a switch; -1: no limit
  std::string verify = "moved";
  bool exact_switches = false;  // each of `switches` moves right after its step
  std::string fill = "zero";    // what a switch's new memory holds before state comes
  double step_timeout = 60;     // seconds that a rank waits for another one within a step
  std::string save;             // directory of checkpoints, empty: none
  int64_t save_every = 0;       // steps; 0: only at the end
  std::string resume;           // directory to go on from, empty: start anew
  std::string dump_state;  // directory for the state just before and after each switch, empty: none
  bool probe_loss = false;      // loss of one fixed batch just before and after each switch
  bool report_samples = false;  // ids of the samples that each rank read, by step

  std::string ToJson() const;
  static Result<JobConfig> FromJson(const std::string& text);
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_JOB_CONFIG_H_
