// What a rank process tells its launcher: one JSON object per line on the events pipe, {"event": ..., ...}.
//
//   step    {step, loss, seconds, layout, tokens, grad_norm}   from the lowest rank of the layout
//   probe   {switch, when: "before" | "after", step, loss}      loss of the fixed batch
//   switch  a SwitchReport, the merged one
//   resumed {path, step, load_seconds, groups_seconds}, saved {path, step, seconds}
//   error   {message}                                          the rank ends with exit code 1 afterwards
#ifndef DYNATRAIN_APPS_EVENTS_H_
#define DYNATRAIN_APPS_EVENTS_H_

#include <mutex>
#include <string>

#include <nlohmann/json.hpp>

namespace dynatrain::apps {

// Any thread. Lines are written whole; a launcher that is gone is no error here (the rank dies with it).
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
