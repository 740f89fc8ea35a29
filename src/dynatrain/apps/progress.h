// What a person sees of a run: a progress line, notes as things happen, and a table of the
// switches.
#ifndef DYNATRAIN_APPS_PROGRESS_H_
#define DYNATRAIN_APPS_PROGRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dynatrain/apps/format.h"
#include "dynatrain/elastic/switch.h"

namespace dynatrain::apps {

// The lines of the summary: one row per switch, its costs and whether the state was proven equal.
std::string SwitchTable(const std::vector<elastic::SwitchReport>& reports);

// Writes to standard error. A terminal gets one line that is rewritten; a file gets a line every
// few steps.
class Progress {
 public:
  explicit Progress(int64_t steps);
  void Step(int64_t step, double loss, double tokens_per_second, const std::string& layout);
  void Note(const std::string& text);  // a line of its own
  void End();

 private:
  void ClearLine();

  const int64_t steps_;
  const bool terminal_;
  bool line_open_ = false;
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_PROGRESS_H_
