// dynatrain: trains, and changes the layout while it trains. See README.md. Built without torch, it
// plans only.
#include <cstdio>

#include <CLI/CLI.hpp>

#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/flags.h"

int main(int argc, char** argv) {
  CLI::App app("Trains language models and changes their parallel layout while they train.",
               "dynatrain");
  app.require_subcommand(1);
  app.set_version_flag("--version", "dynatrain " DYNATRAIN_VERSION);
  int exit_code = 0;
  dynatrain::apps::AddPlanCommand(app, &exit_code);
  dynatrain::apps::AddSimulateCommand(app, &exit_code);
#ifdef DYNATRAIN_WITH_TORCH
  dynatrain::apps::AddTrainCommand(app, &exit_code);
  dynatrain::apps::AddBenchCommand(app, &exit_code);
  dynatrain::apps::AddImportCommand(app, &exit_code);
  dynatrain::apps::AddExportCommand(app, &exit_code);
  dynatrain::apps::AddSwitchCommand(app, &exit_code);
  dynatrain::apps::AddStatusCommand(app, &exit_code);
  dynatrain::apps::AddRankCommand(app, &exit_code);
  dynatrain::apps::AddBenchRankCommand(app, &exit_code);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "%s\n", dynatrain::apps::UsageError(app, error, argc, argv).c_str());
    return 1;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("dynatrain: standard output cannot be written\n", stderr);
    return 1;
  }
  return exit_code;
}
