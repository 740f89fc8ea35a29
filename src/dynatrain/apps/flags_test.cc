#include "dynatrain/apps/flags.h"

#include <limits>
#include <optional>

#include <gtest/gtest.h>

namespace dynatrain::apps {
namespace {

const Range<int64_t> kSteps{1, std::numeric_limits<int64_t>::max(), "steps"};
const Range<double> kSeconds{0.1, 86400, "seconds"};

TEST(CheckNumber, RightOnesAreTakenWhole) {
  for (const char* text : {"1", "42", "9223372036854775807"})
    EXPECT_EQ(CheckNumber("--steps", text, kSteps), "") << text;
  for (const char* text : {"0.1", "3", "8.64e4"})
    EXPECT_EQ(CheckNumber("--step-timeout", text, kSeconds), "") << text;
}

TEST(CheckNumber, WrongOnesAreToldWithTheirRange) {
  for (const std::string text : {"", "0", "-1", "9223372036854775808", "99999999999999999999",
                                 "1.5", "1e3", "0x10", "3x", " 3", "+3", "many"}) {
    EXPECT_EQ(CheckNumber("--steps", text, kSteps),
              "--steps " + text + ": give a whole number of steps from 1 to 9223372036854775807");
  }
  for (const std::string text : {"", "0", "nan", "inf", "-inf", "1e999", "86401", "soon"}) {
    EXPECT_EQ(CheckNumber("--step-timeout", text, kSeconds),
              "--step-timeout " + text + ": give a number of seconds from 0.1 to 86400");
  }
  EXPECT_EQ(CheckNumber("--lr", "-1", Range<double>{0, std::numeric_limits<double>::max(), ""}),
            "--lr -1: give a number of at least 0");
}

// What main does, on a program with one command.
std::string Error(std::vector<std::string> arguments) {
  CLI::App app("", "dynatrain");
  app.require_subcommand(1);
  CLI::App* command = app.add_subcommand("train", "");
  int64_t steps = 0;
  std::optional<int32_t> nproc;
  std::string dtype, mode;
  bool derive = false;
  AddNumber(*command, "--steps", steps, kSteps, "steps of the training")->required();
  AddNumber(*command, "--nproc", nproc, Range<int64_t>{1, 256, "processes"}, "processes");
  AddChoice(*command, "--dtype", dtype, {"fp32", "bf16"}, "of parameters");
  AddChoice(*command, "--mode", mode, {"keep"}, "of switches");
  command->add_flag("--derive", derive, "compute parameters");
  app.add_subcommand("hidden", "")->group("");
  arguments.insert(arguments.begin(), "dynatrain");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  try {
    app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error, static_cast<int>(argv.size()), argv.data());
  }
  return "steps " + std::to_string(steps) + " nproc " + std::to_string(nproc.value_or(-1)) +
         " dtype " + dtype;
}

TEST(UsageError, NamesFlagValueAndWhatIsRight) {
  EXPECT_EQ(Error({"train", "--steps", "7", "--nproc", "2", "--dtype", "bf16"}),
            "steps 7 nproc 2 dtype bf16");
  EXPECT_EQ(Error({"train", "--steps", "7"}), "steps 7 nproc -1 dtype ");
  EXPECT_EQ(Error({"train", "--steps", "7", "--nproc", "-1"}),
            "dynatrain train: --nproc -1: give a whole number of processes from 1 to 256");
  EXPECT_EQ(Error({"train", "--steps", "7", "--dtype", "fp8"}),
            "dynatrain train: --dtype fp8: give fp32 or bf16");
  EXPECT_EQ(Error({"train", "--steps", "7", "--mode", "stream"}),
            "dynatrain train: --mode stream: this version has keep only");
  EXPECT_EQ(Error({"train"}), "dynatrain train: --steps is missing: steps of the training");
  EXPECT_EQ(Error({"train", "--steps"}),
            "dynatrain train: --steps: its value is missing: steps of the training");
  EXPECT_EQ(Error({"train", "--steps", "7", "--steps", "8"}),
            "dynatrain train: --steps 7 and 8: give it once");
  EXPECT_EQ(Error({"train", "--steps", "7", "--derive=maybe"}),
            "dynatrain train: --derive=maybe: --derive takes no value");
  EXPECT_EQ(Error({"train", "--steps", "7", "--stpes", "8"}),
            "dynatrain train: unknown argument --stpes 8; dynatrain train --help shows the right "
            "ones");
  EXPECT_EQ(Error({}), "dynatrain: give a command: train");
  EXPECT_EQ(Error({"fly"}), "dynatrain: fly: give a command: train");
}

}  // namespace
}  // namespace dynatrain::apps
