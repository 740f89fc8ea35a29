#include "dynatrain/apps/events.h"

#include <unistd.h>

#include <cerrno>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/json.h"

namespace dynatrain::apps {

void EventWriter::Write(std::string_view name, nlohmann::json fields) {
  fields["event"] = name;
  fields["t"] = ToSeconds(MonotonicClock().Now());
  const std::string line = DumpJson(fields) + "\n";
  const std::lock_guard lock(mutex_);
  for (size_t done = 0; done < line.size();) {
    const ssize_t written = ::write(fd_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    done += static_cast<size_t>(written);
  }
}

}  // namespace dynatrain::apps
