// Runs a Program over a Transport: state goes from the old buffers to the new ones. Old storage is
// only read, and, by a program of mode kStream, given back to the system granule by granule.
#ifndef DYNATRAIN_ENGINE_EXECUTOR_H_
#define DYNATRAIN_ENGINE_EXECUTOR_H_

#include <memory>
#include <string>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/engine/program.h"
#include "dynatrain/engine/remains.h"
#include "dynatrain/engine/state.h"
#include "dynatrain/engine/ties.h"
#include "dynatrain/transport/transport.h"

namespace dynatrain::engine {

enum class Verify {
  kOff,
  kMoved,  // XXH3 of every moved piece's logical bytes at the source and, after unpacking, at the
           // destination; and that the copies of each tied tensor agree (by the caller, see
           // ExecutionReport::ties)
  kFull    // kMoved, and digest and replica check of all state before and after (by the caller, see
           // elastic)
};
Result<Verify> ParseVerify(std::string_view name);  // "off", "moved", "full"

struct ExecutionReport {
  Duration pack{}, wire{}, unpack{}, copy{}, check{};  // busy time of this rank's thread in each
  Duration memory{};                                   // kStream: taking and giving back
  // kMoved and kFull, mode kKeep: this rank's terms. The switch is right only if CheckTies accepts
  // the sum over all ranks. In mode kStream old copies go while the program runs: the caller sums
  // and checks them before.
  TieSums ties;
};

// Staging memory for one program, touched; made beforehand (on a background thread) so that Execute
// allocates nothing.
class Staging {
 public:
  static Result<std::unique_ptr<Staging>> Make(const Program& program, Verify verify);
  virtual ~Staging() = default;
};

// Runs all of `program`. On an error (kDataLoss: a check failed, names the tensor and box; else the
// transport's) the new buffers hold garbage and the old ones are untouched. `timeout` bounds each
// wait. Calls nothing that allocates much. Messages may still be under way after an error: destroy
// the transport before the new state and the staging memory. A program of mode kStream wants new
// state from StateBuffers::Reserve; after an error its old state has lost what was acknowledged by
// everybody who needed it, and nothing else; `progress` (may be null) tells how far it came.
Result<ExecutionReport> Execute(const Program& program, const StateBuffers& old_state,
                                StateBuffers* new_state, transport::Transport& transport,
                                Staging* staging, Verify verify, const Clock& clock,
                                Duration timeout, ExecutionProgress* progress = nullptr);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_EXECUTOR_H_
