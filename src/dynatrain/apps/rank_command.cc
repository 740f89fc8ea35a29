#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/rank_main.h"

namespace dynatrain::apps {
namespace {

struct RankFlags {
  RankId rank = 0;
  std::string store;
  pid_t launcher = 0;
};

}  // namespace

void AddRankCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("rank", "one rank of a job (started by `train`)");
  command->group("");  // hidden
  auto flags = std::make_shared<RankFlags>();
  command->add_option("--rank", flags->rank)->required();
  command->add_option("--store", flags->store)->required();
  command->add_option("--launcher", flags->launcher)->required();
  command->callback(
      [flags, exit_code] { *exit_code = RankMain(flags->rank, flags->store, flags->launcher); });
}

}  // namespace dynatrain::apps
