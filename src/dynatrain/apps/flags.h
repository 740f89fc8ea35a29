// Flags of the command line: numbers and choices that are checked as they are read, and what is said
// of wrong ones. Every message names the flag, its value and what would be right.
#ifndef DYNATRAIN_APPS_FLAGS_H_
#define DYNATRAIN_APPS_FLAGS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"

namespace dynatrain::apps {

// Right are the numbers of low to high, whole ones unless Number is double. `unit`: a word for what
// is counted, may be empty.
template <class Number>
struct Range {
  Number low, high;
  std::string_view unit;
};

// Empty if `text` is such a number, as a whole; else what is wrong with it.
// Number: int64_t, uint64_t or double.
template <class Number>
std::string CheckNumber(std::string_view flag, const std::string& text, Range<Number> range);

// A flag with a number that goes to `value`, which outlives `app`. Another one than those of `range`
// is a CLI::ValidationError.
template <class Number, class Value>
CLI::Option* AddNumber(CLI::App& app, const std::string& flag, Value& value, Range<Number> range,
                       const std::string& help) {
  return app.add_option(flag, value, help)->check([flag, range](const std::string& text) {
    return CheckNumber(flag, text, range);
  });
}

// A flag with one of `choices`; another value is a CLI::ValidationError.
CLI::Option* AddChoice(CLI::App& app, const std::string& flag, std::string& value,
                       std::vector<std::string> choices, const std::string& help);

// As ParseBytes (byte_count.h), but an error is thrown as a CLI::ValidationError.
ByteCount ReadBytes(const std::string& flag, const std::string& text);

// A flag with such a number of bytes, that goes to `value`, which outlives `app`.
template <class Value>
CLI::Option* AddBytes(CLI::App& app, const std::string& flag, Value& value,
                      const std::string& help) {
  return app.add_option_function<std::string>(
      flag, [flag, &value](const std::string& text) { value = ReadBytes(flag, text); }, help);
}

// What the ranks are started with travels as JSON, which is UTF-8. kInvalidArgument, with the first
// of `arguments` that is not.
Status CheckUtf8(const std::vector<std::string>& arguments);

// One line about arguments that could not be read: "dynatrain train: --model is missing: ...".
std::string UsageError(const CLI::App& app, const CLI::ParseError& error, int argc,
                       const char* const* argv);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_FLAGS_H_
