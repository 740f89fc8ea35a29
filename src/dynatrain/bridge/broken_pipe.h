// SIGPIPE: Gloo writes to its sockets with plain writes, so a peer that has gone would end this
// process instead of failing an operation.
#ifndef DYNATRAIN_BRIDGE_BROKEN_PIPE_H_
#define DYNATRAIN_BRIDGE_BROKEN_PIPE_H_

#include <signal.h>

namespace dynatrain::bridge {

// Ignores SIGPIPE in this process, from now on, unless somebody handles it already. Any thread.
inline void IgnoreBrokenPipes() {
  struct sigaction current{};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_BROKEN_PIPE_H_
