// What is said about a switch: keys, request, decision and report, as text.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "dynatrain/base/json.h"
#include "dynatrain/elastic/switch.h"

namespace dynatrain::elastic {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kCommit = "commit";
constexpr std::string_view kAbort = "abort: ";

}  // namespace

std::string SwitchKey(int64_t id, std::string_view name) {
  return fmt::format("switch/{}/{}", id, name);
}

std::string SwitchKey(int64_t id, std::string_view name, RankId rank) {
  return fmt::format("switch/{}/{}/{}", id, name, rank);
}

std::string_view OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCommitted:
      return "committed";
    case Outcome::kRolledBack:
      return "rolled_back";
    case Outcome::kLost:
      return "lost";
  }
  return "rolled_back";
}

Outcome OutcomeFromName(std::string_view name) {
  for (const Outcome outcome : {Outcome::kCommitted, Outcome::kLost}) {
    if (name == OutcomeName(outcome)) return outcome;
  }
  return Outcome::kRolledBack;
}

std::string RemainsNote::ToJson() const {
  return DumpJson(
      {{"phases", granularity.phases},
       {"granule_bytes", granularity.granule_bytes},
       {"gave_back", gave_back},
       {"progress", Json::array({progress.begun, progress.received, progress.released})}});
}

Result<RemainsNote> RemainsNote::FromJson(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    RemainsNote note;
    json.at("phases").get_to(note.granularity.phases);
    json.at("granule_bytes").get_to(note.granularity.granule_bytes);
    json.at("gave_back").get_to(note.gave_back);
    const Json& progress = json.at("progress");
    note.progress = {progress.at(0).get<int32_t>(), progress.at(1).get<int32_t>(),
                     progress.at(2).get<int32_t>()};
    return note;
  } catch (const Json::exception& e) {
    return InvalidArgument("remains of a switch: {}", e.what());
  }
}

std::string Settlement::ToText() const {
  return DumpJson({{"outcome", OutcomeName(outcome)}, {"lost", lost}});
}

Settlement Settlement::FromText(const std::string& text) {
  // What cannot be read must not be trained on.
  Settlement settlement{Outcome::kLost, {}};
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("outcome") || !json.contains("lost")) return settlement;
  settlement.outcome = OutcomeFromName(json.value("outcome", "lost"));
  settlement.lost = json.value("lost", std::vector<std::string>());
  return settlement;
}

std::string Decision::ToText() const {
  return commit ? std::string(kCommit) : std::string(kAbort) + reason;
}

Decision Decision::FromText(const std::string& text) {
  if (text == kCommit) return {true, ""};
  return {false, text.starts_with(kAbort) ? text.substr(kAbort.size()) : text};
}

std::string SwitchRequest::ToJson() const {
  return DumpJson({{"id", id}, {"spec", spec}, {"requested_step", requested_step}});
}

Result<SwitchRequest> SwitchRequest::FromJson(const std::string& text) {
  try {
    DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
    SwitchRequest request;
    request.id = json.at("id").get<int64_t>();
    request.spec = json.at("spec").get<std::string>();
    request.requested_step = json.at("requested_step").get<int64_t>();
    return request;
  } catch (const Json::exception& e) {
    return InvalidArgument("switch request: {}", e.what());
  }
}

std::string SwitchReport::ToJson() const {
  return DumpJson({{"id", id},
                   {"step", step},
                   {"requested_step", requested_step},
                   {"from", from},
                   {"to", to},
                   {"outcome", OutcomeName(outcome)},
                   {"reason", reason},
                   {"lost", lost},
                   {"prepare_seconds", prepare_seconds},
                   {"pause_seconds", pause_seconds},
                   {"first_step_excess_seconds", first_step_excess_seconds},
                   {"execute_seconds", execute_seconds},
                   {"verify_seconds", verify_seconds},
                   {"decide_seconds", decide_seconds},
                   {"activate_seconds", activate_seconds},
                   {"moved_bytes", moved_bytes},
                   {"kept_bytes", kept_bytes},
                   {"peak_extra_bytes", peak_extra_bytes},
                   {"phases", phases},
                   {"digest_before", HexText(digest_before)},
                   {"digest_after", HexText(digest_after)},
                   {"replica_check", HexText(replica_check)}});
}

Result<SwitchReport> SwitchReport::FromJson(const std::string& text) {
  try {
    DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
    SwitchReport report;
    json.at("id").get_to(report.id);
    json.at("step").get_to(report.step);
    json.at("requested_step").get_to(report.requested_step);
    json.at("from").get_to(report.from);
    json.at("to").get_to(report.to);
    report.outcome = OutcomeFromName(json.at("outcome").get<std::string>());
    json.at("reason").get_to(report.reason);
    json.at("lost").get_to(report.lost);
    json.at("prepare_seconds").get_to(report.prepare_seconds);
    json.at("pause_seconds").get_to(report.pause_seconds);
    json.at("first_step_excess_seconds").get_to(report.first_step_excess_seconds);
    json.at("execute_seconds").get_to(report.execute_seconds);
    json.at("verify_seconds").get_to(report.verify_seconds);
    json.at("decide_seconds").get_to(report.decide_seconds);
    json.at("activate_seconds").get_to(report.activate_seconds);
    json.at("moved_bytes").get_to(report.moved_bytes);
    json.at("kept_bytes").get_to(report.kept_bytes);
    json.at("peak_extra_bytes").get_to(report.peak_extra_bytes);
    json.at("phases").get_to(report.phases);
    report.digest_before = FromHex(json.at("digest_before"));
    report.digest_after = FromHex(json.at("digest_after"));
    report.replica_check = FromHex(json.at("replica_check"));
    return report;
  } catch (const Json::exception& e) {
    return InvalidArgument("switch report: {}", e.what());
  }
}

SwitchReport MergeReports(const std::vector<SwitchReport>& reports) {
  DT_CHECK(!reports.empty());
  SwitchReport merged = reports.front();
  for (size_t i = 1; i < reports.size(); ++i) {
    const SwitchReport& other = reports[i];
    const auto most = [&other, &merged](auto SwitchReport::* field) {
      merged.*field = std::max(merged.*field, other.*field);
    };
    most(&SwitchReport::step);
    most(&SwitchReport::prepare_seconds);
    most(&SwitchReport::pause_seconds);
    most(&SwitchReport::first_step_excess_seconds);
    most(&SwitchReport::execute_seconds);
    most(&SwitchReport::verify_seconds);
    most(&SwitchReport::decide_seconds);
    most(&SwitchReport::activate_seconds);
    most(&SwitchReport::peak_extra_bytes);
    most(&SwitchReport::phases);
    merged.moved_bytes += other.moved_bytes;
    merged.kept_bytes += other.kept_bytes;
    // Only the coordinator knows the job-wide sums; the others tell 0.
    most(&SwitchReport::digest_before);
    most(&SwitchReport::digest_after);
    most(&SwitchReport::replica_check);
    if (merged.reason.empty()) merged.reason = other.reason;
    if (merged.lost.empty()) merged.lost = other.lost;
  }
  return merged;
}

}  // namespace dynatrain::elastic
