// JobState: what a training job knows besides its tensors. Replicated, small, travels with a
// switch's commit.
//
// The trainer has no other state: learning rate and data order are functions of it, and no random
// stream runs on from step to step, so no rank's stream has to be kept when ranks change.
#ifndef DYNATRAIN_TRAINER_JOB_STATE_H_
#define DYNATRAIN_TRAINER_JOB_STATE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "dynatrain/base/status.h"

namespace dynatrain::trainer {

struct JobState {
  int64_t step = 0;     // the last finished one
  int64_t samples = 0;  // data position: samples used so far, of the whole job
  uint64_t seed = 0;    // of the data order
  std::string ToBytes() const;
  static Result<JobState> FromBytes(std::string_view bytes);
  friend bool operator==(const JobState&, const JobState&) = default;
};

}  // namespace dynatrain::trainer

#endif  // DYNATRAIN_TRAINER_JOB_STATE_H_
