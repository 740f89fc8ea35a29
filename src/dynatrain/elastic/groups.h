// Groups: the communicators of a layout, made by whoever brings a backend (GroupFactory), named by
// a pure function.
#ifndef DYNATRAIN_ELASTIC_GROUPS_H_
#define DYNATRAIN_ELASTIC_GROUPS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/transport/transport.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::elastic {

// A communicator over `ranks`, in this order (index in the list = group rank).
struct GroupSpec {
  std::string axis;  // "tp", "dp", "pp", "world", "embedding" (first and last stage of one pp line)
  std::string name;  // unique in the layout: "dp.3"
  std::vector<RankId> ranks;
  friend bool operator==(const GroupSpec&, const GroupSpec&) = default;
};

// All groups of a layout, in one order that is the same on every rank: world, tp, dp, pp,
// embedding. Groups of one rank are left out, except that "world" is always told. "embedding"
// exists for pp > 1.
std::vector<GroupSpec> GroupsOf(const vps::Layout& layout);
// Those with `rank` in them, in the same order.
std::vector<GroupSpec> GroupsOfRank(const vps::Layout& layout, RankId rank);

// A built communicator. Opaque to the core; the bridge knows the type behind it. Destruction may
// block for some tens of milliseconds: let the last reference go on a background thread.
class Group {
 public:
  virtual ~Group() = default;
  virtual const GroupSpec& spec() const = 0;
  virtual void Abort() = 0;  // any thread: pending and later operations fail soon
};

// The groups of one rank in one layout, by axis.
using GroupSet = std::map<std::string, std::shared_ptr<Group>>;

// SEAM. Any thread, one at a time per object; members only need to call, in the order of
// GroupsOfRank.
class GroupFactory {
 public:
  virtual ~GroupFactory() = default;
  // `epoch`: never used before for a group with this name (names do not repeat in the store). Every
  // member calls. Returns when this rank's part stands; pairs are connected. Fails within
  // `timeout`, naming group and ranks.
  virtual Result<std::shared_ptr<Group>> MakeGroup(const std::string& epoch, const GroupSpec& spec,
                                                   Duration timeout) = 0;
  // A transport over `ranks` for the messages of one switch, every pair in `peers` (this rank's
  // own) warmed up.
  virtual Result<std::unique_ptr<transport::Transport>> MakeTransport(
      const std::string& epoch, const std::vector<RankId>& ranks, const std::vector<RankId>& peers,
      Duration timeout) = 0;
  // Any thread. This rank leaves the job: what is being built waits no longer for other members,
  // and all building fails with kAborted from now on. May do nothing where waits are short anyway.
  virtual void Leave() {}
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_GROUPS_H_
