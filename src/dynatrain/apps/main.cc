// dynatrain: trains, and changes the layout while it trains. See README.md. Built without torch, it
// plans only.
#include <CLI/CLI.hpp>

#include "dynatrain/apps/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Trains language models and changes their parallel layout while they train.",
               "dynatrain");
  app.require_subcommand(1);
  app.set_version_flag("--version", "dynatrain " DYNATRAIN_VERSION);
  int exit_code = 0;
  dynatrain::apps::AddPlanCommand(app, &exit_code);
#ifdef DYNATRAIN_WITH_TORCH
  dynatrain::apps::AddTrainCommand(app, &exit_code);
  dynatrain::apps::AddImportCommand(app, &exit_code);
  dynatrain::apps::AddExportCommand(app, &exit_code);
  dynatrain::apps::AddSwitchCommand(app, &exit_code);
  dynatrain::apps::AddStatusCommand(app, &exit_code);
  dynatrain::apps::AddRankCommand(app, &exit_code);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return exit_code;
}
