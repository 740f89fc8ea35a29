// elastic::GroupFactory over c10d Gloo: communicators for the trainer, transports for switches.
#ifndef DYNATRAIN_BRIDGE_C10D_GROUPS_H_
#define DYNATRAIN_BRIDGE_C10D_GROUPS_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/bridge/gloo_shim.h"
#include "dynatrain/bridge/worker_thread.h"
#include "dynatrain/elastic/groups.h"

namespace dynatrain::bridge {

class GroupStore;

struct GlooOptions {
  // Where groups listen and connect: a network interface ("lo", "eth0") or, if empty, an IP address
  // or host name of this machine. One of them is needed; looking up the machine's own name can take
  // seconds.
  std::string interface = {};
  std::string address = {};
  // Default deadline of every operation on a group once it is built.
  Duration operation_timeout = std::chrono::seconds(60);
};

// Makes groups whose names live under "<kind>/<epoch>/<name>" in the store. Building is collective
// over a group's members alone:
//   1. every member announces itself and waits for the others, so that a missing one is named;
//   2. Gloo connects all pairs;
//   3. a barrier, after which each member deletes the keys it wrote: dead generations leave nothing
//   behind. After a
//      failure they stay, for members that still wait, until the next success or the factory's end.
// All groups share one network device. They are destroyed on the factory's own thread, whoever lets
// go of them and whenever, also after the factory is gone.
class GlooGroupFactory final : public elastic::GroupFactory {
 public:
  // Opens its own connection to the store.
  static Result<std::unique_ptr<GlooGroupFactory>> Connect(RankId rank, const StoreAddress& store,
                                                           const GlooOptions& options,
                                                           Duration timeout);
  // Over a c10d store that nobody else calls at the same time (a HashStore may be shared).
  static Result<std::unique_ptr<GlooGroupFactory>> Make(RankId rank,
                                                        c10::intrusive_ptr<c10d::Store> store,
                                                        const GlooOptions& options);
  ~GlooGroupFactory() override;

  Result<std::shared_ptr<elastic::Group>> MakeGroup(const std::string& epoch,
                                                    const elastic::GroupSpec& spec,
                                                    Duration timeout) override;
  Result<std::unique_ptr<transport::Transport>> MakeTransport(const std::string& epoch,
                                                              const std::vector<RankId>& ranks,
                                                              const std::vector<RankId>& peers,
                                                              Duration timeout) override;

  void Leave() override { *leaving_ = true; }

  // Returns when the groups let go of so far are destroyed.
  void Drain() { reaper_->Drain(); }

 private:
  GlooGroupFactory(RankId rank, c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options,
                   GlooDevice device);

  Result<c10::intrusive_ptr<c10d::Backend>> Build(const std::string& prefix,
                                                  const std::string& what,
                                                  const std::vector<RankId>& ranks,
                                                  Duration timeout);
  Status DeleteKeys();

  const RankId rank_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const GlooOptions options_;
  const GlooDevice device_;
  const std::shared_ptr<WorkerThread> reaper_;
  const std::shared_ptr<std::atomic<bool>> leaving_ = std::make_shared<std::atomic<bool>>(false);
  std::vector<c10::intrusive_ptr<GroupStore>> written_;  // stores with keys still to be deleted
};

// The c10d group behind a group of this factory, for the trainer's collectives. Valid while `group`
// lives: hold the group, not the backend, so that it is destroyed off the training thread. All
// members must issue a group's operations in the same order.
c10::intrusive_ptr<c10d::Backend> BackendOf(const elastic::Group& group);

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_C10D_GROUPS_H_
