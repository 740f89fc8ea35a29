// Groups and transports inside one process, for ranks that are threads: they tell who met whom, and
// carry the messages of a switch. Group operations are the owner's affair.
#ifndef DYNATRAIN_ELASTIC_LOCAL_GROUPS_H_
#define DYNATRAIN_ELASTIC_LOCAL_GROUPS_H_

#include <memory>
#include <string>
#include <vector>

#include "dynatrain/elastic/groups.h"
#include "dynatrain/transport/local.h"

namespace dynatrain::elastic {

// Where the factories of all ranks meet. Any thread. Factories keep it alive.
class LocalGroupHub {
 public:
  explicit LocalGroupHub(transport::LocalOptions options = {});

  // The factory of `rank`.
  std::unique_ptr<GroupFactory> FactoryOf(RankId rank);

  // Groups built and not destroyed yet, counted once per member.
  int live_groups() const;

  class Core;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_LOCAL_GROUPS_H_
