#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/control.h"
#include "dynatrain/apps/rank_main.h"

namespace dynatrain::apps {
namespace {

struct RankFlags {
  RankId rank = 0;
  bridge::StoreAddress store;
  std::string address;
  bridge::GlooOptions gloo;
  pid_t launcher = 0;
};

}  // namespace

void AddRankCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("rank", "one rank of a job (started by `train`)");
  command->group("");  // hidden
  auto flags = std::make_shared<RankFlags>();
  command->add_option("--rank", flags->rank)->required();
  command->add_option("--store", flags->address)->required();
  command->add_option("--store-prefix", flags->store.prefix);
  command->add_option("--interface", flags->gloo.interface);
  command->add_option("--host", flags->gloo.address);
  command->add_option("--launcher", flags->launcher)->required();
  command->callback([flags, exit_code] {
    const Result<Address> address = ParseAddress(flags->address);
    if (!address.ok()) return void(*exit_code = 1);
    flags->store.host = address->host;
    flags->store.port = static_cast<uint16_t>(address->port);
    *exit_code = RankMain(flags->rank, flags->store, flags->gloo, flags->launcher);
  });
}

}  // namespace dynatrain::apps
