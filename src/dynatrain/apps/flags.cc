#include "dynatrain/apps/flags.h"

#include <algorithm>
#include <charconv>
#include <concepts>
#include <limits>
#include <utility>

#include <fmt/ranges.h>

#include "dynatrain/apps/byte_count.h"
#include "dynatrain/base/json.h"
#include "dynatrain/base/text.h"

namespace dynatrain::apps {
namespace {

// Before a flag's name and value in messages of CLI11.
constexpr std::string_view kNotConverted = "Could not convert: ";

template <class Number>
std::string RightNumbers(const Range<Number>& range) {
  const std::string_view whole = std::floating_point<Number> ? "" : "whole ";
  const std::string unit = range.unit.empty() ? "" : fmt::format(" of {}", range.unit);
  if (std::floating_point<Number> && range.high == std::numeric_limits<Number>::max()) {
    return fmt::format("a number{} of at least {}", unit, range.low);
  }
  return fmt::format("a {}number{} from {} to {}", whole, unit, range.low, range.high);
}

bool Is(const CLI::ParseError& error, CLI::ExitCodes code) {
  return error.get_exit_code() == static_cast<int>(code);
}

// The innermost command that was given.
const CLI::App& CommandOf(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app : *commands.front();
}

std::string CommandNames(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;  // hidden
    names += fmt::format("{}{}", names.empty() ? "" : ", ", command->get_name());
  }
  return names;
}

// "NAME=..." among the arguments, shortened; NAME if there is none.
std::string AsGiven(const std::string& name, int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with(name + "=")) return Shortened(argument);
  }
  return name;
}

// What is wrong with an option that CLI11 names at the beginning of its message.
std::string OptionError(const CLI::App& command, const CLI::ParseError& error, int argc,
                        const char* const* argv) {
  std::string text = error.what();
  if (text.starts_with(kNotConverted)) text.erase(0, kNotConverted.size());
  const std::string name = text.substr(0, text.find_first_of(": "));
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option == nullptr) return Shortened(text);
  const std::string& help = option->get_description();
  if (Is(error, CLI::ExitCodes::RequiredError)) return fmt::format("{} is missing: {}", name, help);
  if (option->get_expected_max() == 0) {
    return fmt::format("{}: {} takes no value", AsGiven(name, argc, argv), name);
  }
  if (option->count() > 1) {
    return fmt::format("{} {} and {}: give it once", name, Shortened(option->results()[0]),
                       Shortened(option->results()[1]));
  }
  return fmt::format("{}: its value is missing: {}", name, help);
}

}  // namespace

template <class Number>
std::string CheckNumber(std::string_view flag, const std::string& text, Range<Number> range) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const bool read = error == std::errc() && stop == end;
  if (read && number >= range.low && number <= range.high) return "";
  return fmt::format("{} {}: give {}", flag, Shortened(text), RightNumbers(range));
}
template std::string CheckNumber(std::string_view, const std::string&, Range<int64_t>);
template std::string CheckNumber(std::string_view, const std::string&, Range<uint64_t>);
template std::string CheckNumber(std::string_view, const std::string&, Range<double>);

CLI::Option* AddChoice(CLI::App& app, const std::string& flag, std::string& value,
                       std::vector<std::string> choices, const std::string& help) {
  return app.add_option(flag, value, help)
      ->check([flag, choices = std::move(choices)](const std::string& text) {
        if (std::ranges::find(choices, text) != choices.end()) return std::string();
        const std::string right = choices.size() == 1
                                      ? "this version has " + choices.front() + " only"
                                      : fmt::format("give {}", fmt::join(choices, " or "));
        return fmt::format("{} {}: {}", flag, Shortened(text), right);
      });
}

ByteCount ReadBytes(const std::string& flag, const std::string& text) {
  const Result<ByteCount> bytes = ParseBytes(flag, text);
  if (!bytes.ok()) throw CLI::ValidationError(flag, std::string(bytes.status().message()));
  return *bytes;
}

Status CheckUtf8(const std::vector<std::string>& arguments) {
  for (const std::string& text : arguments) {
    if (IsUtf8(text)) continue;
    return InvalidArgument("an argument is not valid UTF-8: {}", DumpJson(text));
  }
  return Status::Ok();
}

std::string UsageError(const CLI::App& app, const CLI::ParseError& error, int argc,
                       const char* const* argv) {
  const CLI::App& command = CommandOf(app);
  const std::string name = &command == &app ? "dynatrain" : "dynatrain " + command.get_name();
  if (&command == &app) {
    const std::string given = argc > 1 ? fmt::format("{}: ", Shortened(argv[1])) : "";
    return fmt::format("{}: {}give a command: {}", name, given, CommandNames(app));
  }
  if (Is(error, CLI::ExitCodes::ValidationError)) {
    // CLI11 puts "NAME: " before what the functions above say.
    const std::string text = error.what();
    return fmt::format("{}: {}", name, text.substr(text.find(": ") + 2));
  }
  if (Is(error, CLI::ExitCodes::ExtrasError)) {
    const std::string extras = fmt::format("{}", fmt::join(command.remaining(), " "));
    return fmt::format("{}: unknown argument {}; {} --help shows the right ones", name,
                       Shortened(extras), name);
  }
  return fmt::format("{}: {}", name, OptionError(command, error, argc, argv));
}

}  // namespace dynatrain::apps
