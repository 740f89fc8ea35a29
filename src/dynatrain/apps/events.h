// What a rank process tells its launcher: one JSON object per line on the events pipe. Each has
// "event" and "t", the time of writing on the host's monotonic clock in seconds (CLOCK_MONOTONIC:
// comparable between processes of a host).
//
// Digests are 16 hexadecimal digits. The launcher adds `waiting` (pending.h) and `silent` (NodeLink::Silent)
// to those it passes on.
//
// - up {rank}: the process runs, libraries are loaded
// - ready {rank, groups_seconds, load_seconds, build_seconds}: before its first step; load is of a
//   checkpoint, else 0
// - resumed {path, step, load_seconds, digest}: from the lowest rank of the first layout
// - step {step, loss, seconds, layout, tokens, grad_norm, lr, started}: from the layout's lowest rank
// - samples {rank, step, ids}: what the rank read, with --report-samples
// - requested {id, spec, step}: a scheduled switch was asked for
// - probe {switch, when: "before" | "after", step, loss}: loss of the fixed batch
// - switch: a SwitchReport, merged over the ranks
// - saved {path, step, seconds, digest}: digest is of the logical state, the same in every layout
// - save_failed {step, message}: nothing of it is left; training goes on
// - error {message}: the rank ends with exit code 1 afterwards
#ifndef DYNATRAIN_APPS_EVENTS_H_
#define DYNATRAIN_APPS_EVENTS_H_

#include <mutex>
#include <string>

#include <nlohmann/json.hpp>

namespace dynatrain::apps {

// Any thread. Lines are written whole; a launcher that is gone is no error here (the rank dies with
// it).
class EventWriter {
 public:
  explicit EventWriter(int fd) : fd_(fd) {}
  // Adds "event": `name` to `fields`, an object.
  void Write(std::string_view name, nlohmann::json fields);

 private:
  const int fd_;
  std::mutex mutex_;
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_EVENTS_H_
