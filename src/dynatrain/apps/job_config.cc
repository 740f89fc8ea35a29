#include "dynatrain/apps/job_config.h"

#include <charconv>

#include <nlohmann/json.hpp>

#include "dynatrain/base/json.h"
#include "dynatrain/base/text.h"

namespace dynatrain::apps {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ScheduledSwitch, step, spec)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobConfig, model, data, layout, switches, num_ranks, steps,
                                   stop_after, global_batch, micro_batch, seq, lr, seed, dtype,
                                   derive, mode, budget, verify, exact_switches, fill, step_timeout,
                                   save, save_every, resume, dump_state, probe_loss, report_samples)

Result<ScheduledSwitch> ParseScheduledSwitch(const std::string& text) {
  const size_t colon = text.find(':');
  ScheduledSwitch result;
  const char* end = text.data() + (colon == std::string::npos ? 0 : colon);
  const auto [stop, error] = std::from_chars(text.data(), end, result.step);
  if (error != std::errc() || stop != end || result.step < 0 || colon + 1 == text.size()) {
    return InvalidArgument(
        "--switch {}: expected STEP:SPEC with a step of 0 or more, such as 40:tp=2,dp=2",
        Shortened(text));
  }
  result.spec = text.substr(colon + 1);
  return result;
}

std::string JobConfig::ToJson() const { return DumpJson(*this); }

Result<JobConfig> JobConfig::FromJson(const std::string& text) {
  try {
    DT_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text));
    return json.get<JobConfig>();
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument("job configuration: {}", error.what());
  }
}

}  // namespace dynatrain::apps
