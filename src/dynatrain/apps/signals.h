// SIGINT and SIGTERM in a launcher: noticed, not obeyed at once.
#ifndef DYNATRAIN_APPS_SIGNALS_H_
#define DYNATRAIN_APPS_SIGNALS_H_

namespace dynatrain::apps {

// From now on both are only counted; SIGPIPE and kStopSignal are ignored, also by ranks that are
// started later, until they handle the latter.
void NoticeSignals();

// The last one that came, 0 if none did; and how many.
int StopSignal();
int StopSignals();

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_SIGNALS_H_
