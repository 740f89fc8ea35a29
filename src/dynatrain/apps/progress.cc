#include "dynatrain/apps/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace dynatrain::apps {
namespace {

constexpr int64_t kLinesWithoutTerminal = 20;

// Rows of cells under a header, columns as wide as their widest cell.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string ProofOf(const elastic::SwitchReport& report) {
  if (report.outcome == elastic::Outcome::kLost) return "LOST";
  if (report.outcome != elastic::Outcome::kCommitted) return "old state kept";
  if (report.digest_before == 0 && report.digest_after == 0) return "moved pieces";
  const bool equal = report.digest_before == report.digest_after && report.replica_check == 0;
  return equal ? "all state" : "FAILED";
}

}  // namespace

std::string SwitchTable(const std::vector<elastic::SwitchReport>& reports) {
  std::vector<std::vector<std::string>> rows = {{"#", "step", "from", "to", "outcome",
                                                 "prepared in", "pause", "move", "verify", "decide",
                                                 "activate", "moved", "kept", "proven equal"}};
  for (const elastic::SwitchReport& r : reports) {
    rows.push_back({fmt::format("{}", r.id), fmt::format("{}", r.step), r.from, r.to,
                    std::string(elastic::OutcomeName(r.outcome)), FormatSeconds(r.prepare_seconds),
                    FormatSeconds(r.pause_seconds), FormatSeconds(r.execute_seconds),
                    FormatSeconds(r.verify_seconds), FormatSeconds(r.decide_seconds),
                    FormatSeconds(r.activate_seconds), FormatBytes(r.moved_bytes),
                    FormatBytes(r.kept_bytes), ProofOf(r)});
  }
  return FormatTable(rows);
}

Progress::Progress(int64_t steps) : steps_(steps), terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::Step(int64_t step, double loss, double tokens_per_second,
                    const std::string& layout) {
  const int64_t every = terminal_ ? 1 : std::max<int64_t>(1, steps_ / kLinesWithoutTerminal);
  if (step != 1 && step != steps_ && step % every != 0) return;
  ClearLine();
  std::fprintf(stderr, "%s",
               fmt::format("step {:>{}}/{}   loss {:.4f}   {:>6} tokens/s   {}", step,
                           std::to_string(steps_).size(), steps_, loss,
                           FormatRate(tokens_per_second), layout)
                   .c_str());
  if (terminal_) {
    line_open_ = true;
    std::fflush(stderr);
  } else {
    std::fputc('\n', stderr);
  }
}

void Progress::Note(const std::string& text) {
  ClearLine();
  std::fprintf(stderr, "%s\n", text.c_str());
}

void Progress::End() {
  if (line_open_) std::fputc('\n', stderr);
  line_open_ = false;
}

void Progress::ClearLine() {
  if (line_open_) std::fputs("\r\033[K", stderr);
  line_open_ = false;
}

}  // namespace dynatrain::apps
