// SimRank: one rank of a simulated job — its training loop, its host, and what is known of it. The
// inside of sim_world.h.
#ifndef DYNATRAIN_ELASTIC_SIM_RANK_H_
#define DYNATRAIN_ELASTIC_SIM_RANK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dynatrain/elastic/agent.h"
#include "dynatrain/elastic/sim_job.h"

namespace dynatrain::elastic {

class SimRank final : public Host {
 public:
  SimRank(SimJob* job, RankId rank) : job_(*job), rank_(rank) {}

  void Run();

  Status CheckLayout(const vps::Layout& layout) override;
  Result<std::shared_ptr<void>> Prepare(const LayoutInstance& instance) override;
  std::string JobState() override;
  bool has_role_state() const override;
  std::string RoleState() override;

  bool fail_allocation = false;
  bool ended = false;                   // Run has returned
  bool leaving = false;                 // its agent is being stopped
  std::map<int64_t, Outcome> outcomes;  // by epoch or id, as the agent told them
  bool taken_for_dead = false;          // ended because the others rolled back without it

 private:
  struct Token;

  std::shared_ptr<LayoutInstance> FirstInstance();
  bool Step();
  bool WaitIdle();
  bool Take(const BoundaryResult& result, int64_t before);
  bool TakeError(const Status& status);
  // The last one that this rank built a transport for.
  int64_t LastSwitch() const;
  void CheckMayTrain();
  void Enter();
  // An idle rank's own idea of the step, never to be heard of.
  int64_t Forgotten() const { return -1000 - rank_; }
  void CheckState(std::string_view when);
  // After a commit: what this rank is given for its role is what the last rank in it left.
  void CheckRoleState(const std::optional<std::string>& given, int64_t before);
  void Train();
  // Flips a bit of the first element of the tied tensor that this rank holds.
  void FlipTiedBit();

  SimJob& job_;
  const RankId rank_;
  std::unique_ptr<SwitchAgent> agent_;
  std::vector<vps::Shard> shards_;  // of the current instance
  int64_t step_ = 0;                // last finished step
  bool moved_ = false;              // has told its job state since it last trained
  bool state_gone_ = false;         // stopped in a switch of mode stream
  enum class Drift { kToCome, kThere, kMended } drift_ = Drift::kToCome;
};

}  // namespace dynatrain::elastic

#endif  // DYNATRAIN_ELASTIC_SIM_RANK_H_
