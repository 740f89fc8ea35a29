// The in-process transport: ranks are threads of one process. For tests, and for the switch
// protocol run by seed.
//
//   LocalHub hub({0, 1, 2});
//   std::unique_ptr<Transport> t1 = hub.Connect(1);   // then on the thread of rank 1
//
// It can be as unkind as a real network may be: rendezvous sends, few operations in flight, and
// completions in an order and at moments drawn from a seed.
#ifndef DYNATRAIN_TRANSPORT_LOCAL_H_
#define DYNATRAIN_TRANSPORT_LOCAL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "dynatrain/transport/transport.h"

namespace dynatrain::transport {

struct LocalOptions {
  // A send completes only when its receive is posted; else it is buffered and completes at once.
  bool rendezvous = true;
  // Operations in flight per rank and direction, in the order of posting; later ones wait for their
  // turn. 0: no bound.
  int32_t max_outstanding = 0;
  ByteCount max_message = INT64_MAX;
  // Not 0: random pauses around each call, and matched messages arrive late and in random order.
  uint64_t timing_seed = 0;
};

// The meeting place of the endpoints, which keep it alive. Any thread.
class LocalHub {
 public:
  explicit LocalHub(std::vector<RankId> ranks, LocalOptions options = {});

  // The endpoint of `rank`, once per rank. Destroying it is leaving: what its peers still have
  // posted to it fails.
  std::unique_ptr<Transport> Connect(RankId rank);

  // As if the process of `rank` had died: its own calls and those of peers that concern it fail
  // with kUnavailable.
  void Kill(RankId rank);

  class Core;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace dynatrain::transport

#endif  // DYNATRAIN_TRANSPORT_LOCAL_H_
