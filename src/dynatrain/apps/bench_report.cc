// What `dynatrain bench` shows: JSON, and lines for a terminal.
#include "dynatrain/apps/bench.h"
#include "dynatrain/apps/format.h"
#include "dynatrain/base/json.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

std::string SpreadText(const Spread& spread) {
  return fmt::format("{} (fastest {}, slowest {})", FormatSeconds(spread.median),
                     FormatSeconds(spread.least), FormatSeconds(spread.most));
}

json OrNull(bool known, ByteCount bytes) { return known ? json(bytes) : json(); }

}  // namespace

json FiguresAsJson(const BenchFigures& figures) {
  const BenchConfig& config = figures.config;
  json result = {
      {"model", config.model},
      {"dtype", config.dtype},
      {"from", config.from},
      {"to", config.to},
      {"nproc", config.num_ranks},
      {"transport", config.transport},
      {"topology", config.topology},
      {"mode", config.mode},
      {"verify", config.verify},
      {"budget_bytes", OrNull(config.budget >= 0, config.budget)},
      {"phases", config.phases},
      {"repeat", config.repeat},
      {"state_bytes", figures.state_bytes},
      {"moved_bytes", figures.moved_bytes},
      {"wire_bytes", figures.wire_bytes},
      {"max_rank_bytes", figures.fullest_rank_bytes},
      {"messages", figures.messages},
      {"seconds_median", figures.seconds.median},
      {"seconds_min", figures.seconds.least},
      {"seconds_max", figures.seconds.most},
      {"limit_seconds", figures.limit.median},
      {"limit_seconds_min", figures.limit.least},
      {"limit_seconds_max", figures.limit.most},
      {"achieved_over_limit", Ratio(figures.seconds.median, figures.limit.median)},
      {"cpu_seconds", figures.cpu_seconds},
      {"limit_cpu_seconds", figures.limit_cpu_seconds},
      {"peak_extra_bytes", figures.peak_extra_bytes},
      {"measured_peak_extra_bytes",
       OrNull(figures.measured_peak_extra_bytes >= 0, figures.measured_peak_extra_bytes)},
      {"digest", HexText(figures.digest)},
      {"predicted_seconds", figures.predicted_seconds},
      {"predicted_over_measured", Ratio(figures.predicted_seconds, figures.seconds.median)},
      {"fitted",
       {{"link_bytes_per_s", figures.fitted_link_bytes_per_s},
        {"latency_s", figures.fitted.latency_s},
        {"message_s", figures.fitted.message_s},
        {"copy_bytes_per_s", figures.fitted.copy_bytes_per_s},
        {"check_bytes_per_s", figures.fitted.check_bytes_per_s}}}};
  for (const auto& [share, seconds] : figures.share_seconds) result[share + "_seconds"] = seconds;
  return result;
}

std::string FiguresAsText(const BenchFigures& figures) {
  const BenchConfig& config = figures.config;
  std::string text = fmt::format(
      "{} {}, narrowed to {} of state: {} -> {}, {} ranks over {}, mode {}, verify {}\n",
      config.model, config.dtype, FormatBytes(figures.state_bytes), config.from, config.to,
      config.num_ranks, config.transport, config.mode, config.verify);
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<18}{}\n", name, value);
  };
  line("moved",
       fmt::format("{} ({} on the wire, {} messages, {} phases)", FormatBytes(figures.moved_bytes),
                   FormatBytes(figures.wire_bytes), figures.messages, config.phases));
  line("time", SpreadText(figures.seconds));
  line("limit", SpreadText(figures.limit) + ", raw exchange of the same bytes");
  line("time / limit", fmt::format("{:.2f}", Ratio(figures.seconds.median, figures.limit.median)));
  if (figures.cpu_seconds > 0)
    line("processor time", fmt::format("{} of all ranks, {:.2f} of the raw exchange's",
                                       FormatSeconds(figures.cpu_seconds),
                                       Ratio(figures.cpu_seconds, figures.limit_cpu_seconds)));
  std::string shares;
  for (const auto& [share, seconds] : figures.share_seconds) {
    shares += fmt::format("{}{} {} ({:.0f} %)", shares.empty() ? "" : ", ", share,
                          FormatSeconds(seconds), 100 * Ratio(seconds, figures.seconds.median));
  }
  line("slowest rank", shares);
  std::string memory = fmt::format("{} stated", FormatBytes(figures.peak_extra_bytes));
  if (figures.measured_peak_extra_bytes >= 0)
    memory += fmt::format(", {} measured", FormatBytes(figures.measured_peak_extra_bytes));
  if (config.budget >= 0) memory += fmt::format(", budget {}", FormatBytes(config.budget));
  line("peak extra memory", memory);
  line("predicted",
       fmt::format("{} ({:.2f} of the time measured)", FormatSeconds(figures.predicted_seconds),
                   Ratio(figures.predicted_seconds, figures.seconds.median)));
  line("digest", fmt::format("{:016x}, equal before and after", figures.digest));
  return text;
}

}  // namespace dynatrain::apps
