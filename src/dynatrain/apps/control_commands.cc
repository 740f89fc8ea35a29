#include <cstdio>

#include <nlohmann/json.hpp>

#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/control.h"
#include "dynatrain/apps/flags.h"
#include "dynatrain/apps/output.h"
#include "dynatrain/apps/pending.h"
#include "dynatrain/apps/progress.h"
#include "dynatrain/base/json.h"
#include "dynatrain/elastic/switch.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;

constexpr double kLongestWait = 1e9;  // seconds
constexpr Duration kAskInterval = std::chrono::milliseconds(100);

struct SwitchFlags {
  std::string job;
  std::string spec;
  double timeout = 300;
  bool no_wait = false;
  bool json = false;
};

Result<Address> JobAddress(const std::string& text) {
  Result<Address> address = ParseAddress(text);
  if (!address.ok()) return address.status().Within("--job");
  return address;
}

// Waits until the job has decided the switch; kDeadlineExceeded after `timeout` seconds (the job
// may still carry it out), kUnavailable if the job ends before it tells.
Result<elastic::SwitchReport> AwaitReport(const Address& job, int64_t id, double timeout) {
  Clock& clock = MonotonicClock();
  const TimePoint deadline =
      clock.Now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout));
  std::string last;
  while (clock.Now() < deadline) {
    const Result<json> state = ControlGet(job, fmt::format("/switch/{}", id));
    if (!state.ok() && state.status().code() == StatusCode::kUnavailable) {
      return Unavailable(
          "switch {} was asked for, but the job at {} ended or went silent before it told the "
          "outcome{}; what the job itself printed last, or its --json lines, tell it",
          id, job.ToString(), last);
    }
    DT_RETURN_IF_ERROR(state.status());
    if (state->value("state", "") == "done")
      return elastic::SwitchReport::FromJson(DumpJson((*state)["report"]));
    if (state->contains("pending")) last = " (" + PendingText((*state)["pending"]) + ")";
    clock.SleepUntil(clock.Now() + kAskInterval);
  }
  return DeadlineExceeded(
      "switch {} was asked for, but not decided within {} s{}; `dynatrain status --job {}` "
      "shows what becomes of it",
      id, timeout, last, job.ToString());
}

Status RunSwitch(const SwitchFlags& flags) {
  DT_ASSIGN_OR_RETURN(const Address job, JobAddress(flags.job));
  DT_ASSIGN_OR_RETURN(const json answer, ControlPost(job, "/switch", {{"spec", flags.spec}}));
  const int64_t id = answer.value("id", int64_t{0});
  if (flags.no_wait) {
    std::printf(flags.json ? "{\"id\":%ld}\n" : "switch %ld asked for\n", static_cast<long>(id));
    return {};
  }
  DT_ASSIGN_OR_RETURN(const elastic::SwitchReport report, AwaitReport(job, id, flags.timeout));
  std::printf("%s\n", flags.json ? report.ToJson().c_str() : SwitchTable({report}).c_str());
  if (report.outcome == elastic::Outcome::kLost) {
    return DataLoss("switch {} is lost, and with it the job's state: {}", id, report.reason);
  }
  if (report.outcome != elastic::Outcome::kCommitted) {
    return Aborted("switch {} was rolled back, the job goes on in {}: {}", id, report.from,
                   report.reason);
  }
  return {};
}

struct StatusFlags {
  std::string job;
  bool json = false;
};

Status RunStatus(const StatusFlags& flags) {
  DT_ASSIGN_OR_RETURN(const Address job, JobAddress(flags.job));
  DT_ASSIGN_OR_RETURN(const json status, ControlGet(job, "/status"));
  if (flags.json) {
    std::printf("%s\n", DumpJson(status).c_str());
    return {};
  }
  std::printf("%s on %d ranks, layout %s, step %ld/%ld", status.value("model", "").c_str(),
              status.value("num_ranks", 0), status.value("layout", "").c_str(),
              static_cast<long>(status.value("step", int64_t{0})),
              static_cast<long>(status.value("steps", int64_t{0})));
  if (status.contains("loss")) std::printf(", loss %.4f", status["loss"].get<double>());
  std::printf("\n");
  std::vector<elastic::SwitchReport> reports;
  for (const json& entry : status["switches"]) {
    DT_ASSIGN_OR_RETURN(elastic::SwitchReport report,
                        elastic::SwitchReport::FromJson(DumpJson(entry)));
    reports.push_back(std::move(report));
  }
  if (!reports.empty()) std::printf("\n%s", SwitchTable(reports).c_str());
  for (const json& pending : status.value("pending", json::array()))
    std::printf("%s\n", PendingText(pending).c_str());
  return {};
}

}  // namespace

void AddSwitchCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("switch", "ask a running job for another layout");
  auto flags = std::make_shared<SwitchFlags>();
  command->add_option("--job", flags->job, "the job's control address, HOST:PORT")->required();
  command->add_option("spec", flags->spec, "the new layout, such as tp=2,dp=2,zero=1")->required();
  AddNumber(*command, "--timeout", flags->timeout, Range<double>{0, kLongestWait, "seconds"},
            "seconds to wait for the outcome")
      ->capture_default_str();
  command->add_flag("--no-wait", flags->no_wait, "return once the job has taken the request");
  command->add_flag("--json", flags->json, "print the report as JSON");
  command->callback([flags, exit_code] { *exit_code = ExitCode("switch", RunSwitch(*flags)); });
}

void AddStatusCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("status", "show step, layout and switches of a running job");
  auto flags = std::make_shared<StatusFlags>();
  command->add_option("--job", flags->job, "the job's control address, HOST:PORT")->required();
  command->add_flag("--json", flags->json, "print it as JSON");
  command->callback([flags, exit_code] { *exit_code = ExitCode("status", RunStatus(*flags)); });
}

}  // namespace dynatrain::apps
