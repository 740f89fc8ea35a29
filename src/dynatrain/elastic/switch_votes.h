// The votes of a switch, as they lie in the store.
#ifndef DYNATRAIN_ELASTIC_SWITCH_VOTES_H_
#define DYNATRAIN_ELASTIC_SWITCH_VOTES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/base/types.h"
#include "dynatrain/engine/executor.h"
#include "dynatrain/vps/digest.h"

namespace dynatrain::elastic {

struct Vote {
  std::string error;  // empty: yes
  // fits
  std::vector<ByteCount> peaks;  // engine::PeaksByGranularity
  // planned
  uint64_t fingerprint = 0;  // of all inputs; equal on all ranks
  uint64_t catalog = 0;      // of what is registered alone, to tell what differs
  uint64_t balance = 0;      // of messages; the sum over ranks is 0 mod 2^64
  // verified
  bool is_old = false;          // holds state of the old layout
  uint64_t job_state_hash = 0;  // old ranks
  vps::StateDigest before;      // old ranks, kFull
  vps::StateDigest after;       // new ranks, kFull
  engine::TieSums ties;         // old ranks, kMoved and kFull

  static Vote No(std::string error);

  std::string ToJson() const;
  // A vote that cannot be read is a no.
  static Vote FromJson(const std::string& json);
};

// The votes of all participants.
using Votes = std::map<RankId, Vote>;

// Ok if everybody planned the same switch; else names the ranks that differ.
Status CheckPlanned(const Votes& votes);

// What the verified votes add up to. Ok if the switch may be committed.
struct VerifiedSum {
  vps::StateDigest before, after;
  Status status;
};
VerifiedSum CheckVerified(const Votes& votes, engine::Verify verify);

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SWITCH_VOTES_H_
