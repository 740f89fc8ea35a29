// Control of a running job over HTTP on loopback: what `dynatrain switch` and `dynatrain status`
// talk to.
//
//   POST /switch   {"spec": "tp=2,dp=2"} -> 200 {"id": 3}, or 400 {"error": "..."} if the layout
//                  does not fit
//   GET /switch/3  -> 200 {"state": "pending", "pending": PENDING} or {"state": "done", "report":
//                  {...}}, or 404
//   GET /status    -> 200 {"step": 120, "steps": 200, "loss": 2.41, "layout": "...",
//                  "switches": [report, ...], "pending": [PENDING, ...], ...}
//
// PENDING, a switch without a report: {"id": 3, "to": "tp=2,dp=2", "requested_step": 90, "stage":
// "queued", "preparing", "prepared", "moving" or "decided", "waiting_for": [ranks that have not
// voted in this stage]}; see elastic/switch_progress.h.
//
// Unauthenticated; whoever reaches the address controls the job, so it listens on loopback
// addresses only. A browser on this machine lets pages of any site reach it, but tells which: a
// request with an Origin other than this port on 127.0.0.1, [::1] or localhost gets 403 {"error":
// "..."}, and so does one for a Host that is no IP address, localhost or this machine's own name:
// whoever owns a name can let it lead here, and pages of that site would read the answers.
#ifndef DYNATRAIN_APPS_CONTROL_H_
#define DYNATRAIN_APPS_CONTROL_H_

#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"

namespace dynatrain::apps {

struct Address {
  std::string host;
  int port = 0;
  std::string ToString() const;  // "127.0.0.1:7070", "[::1]:7070"
};
// "127.0.0.1:7070", "localhost:7070" or "[::1]:7070"; the error says what is wrong with it. A port
// alone or ":port" means 127.0.0.1.
Result<Address> ParseAddress(const std::string& text);

// What the server asks of the job. Called on the server's threads, several at a time.
struct ControlHandlers {
  std::function<Result<int64_t>(const std::string& spec)> request_switch;
  std::function<Result<nlohmann::json>(int64_t id)> switch_state;  // kNotFound: no such switch
  std::function<nlohmann::json()> status;
};

class ControlServer {
 public:
  // Port 0 takes a free one. kUnavailable, naming the address and the system's reason, if it cannot
  // be listened on; kInvalidArgument if it is not loopback. A client that sends nothing for some
  // seconds is disconnected; so many are served at a time that one that hangs keeps nobody waiting.
  static Result<std::unique_ptr<ControlServer>> Start(const Address& address,
                                                      ControlHandlers handlers);
  virtual ~ControlServer() = default;  // stops and joins
  virtual const Address& address() const = 0;
};

// Client side: the JSON answer of a running job. An error answer becomes its Status.
Result<nlohmann::json> ControlGet(const Address& job, const std::string& path);
Result<nlohmann::json> ControlPost(const Address& job, const std::string& path,
                                   const nlohmann::json& body);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_CONTROL_H_
