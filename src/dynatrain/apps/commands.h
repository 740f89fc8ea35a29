// The subcommands of `dynatrain`: flags in, exit code out. Messages go to standard error, results
// to standard output.
#ifndef DYNATRAIN_APPS_COMMANDS_H_
#define DYNATRAIN_APPS_COMMANDS_H_

#include <CLI/CLI.hpp>

namespace dynatrain::apps {

// Each adds its subcommand to `app`; *exit_code is set when it has run.
void AddTrainCommand(CLI::App& app, int* exit_code);
void AddPlanCommand(CLI::App& app, int* exit_code);
void AddImportCommand(CLI::App& app, int* exit_code);
void AddExportCommand(CLI::App& app, int* exit_code);
void AddSimulateCommand(CLI::App& app, int* exit_code);
void AddBenchCommand(CLI::App& app, int* exit_code);
void AddSwitchCommand(CLI::App& app, int* exit_code);
void AddStatusCommand(CLI::App& app, int* exit_code);
// Not for people: what `train` and `bench` start.
void AddRankCommand(CLI::App& app, int* exit_code);
void AddBenchRankCommand(CLI::App& app, int* exit_code);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_COMMANDS_H_
