// Tests with real processes: a training loop of small known state around ElasticRank, one object per
// rank. For tests only.
#ifndef DYNATRAIN_BRIDGE_TESTING_LOOP_H_
#define DYNATRAIN_BRIDGE_TESTING_LOOP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dynatrain/bridge/elastic_rank.h"
#include "dynatrain/bridge/process_harness.h"

namespace dynatrain::bridge {

// Runs a body in `ranks` processes of a job whose store this process serves; the body makes a Loop.
testing::AssertionResult RunJob(const std::string& body, int ranks);

// What a body returns; an error goes to standard error.
int ExitCodeOf(const Status& status);

// A loop that makes one switch after the other, each some steps after the one before. Subclasses say
// what a step does and what must hold. All methods but RolledBack are for one thread.
class Loop : public elastic::Host {
 public:
  // `first`, `switches`: SPECs, the same on all ranks.
  Loop(const ChildArgs& child, std::string first, std::vector<std::string> switches);

  // To the end of the job. The state is what `parameters` say, in this order.
  Status Run(std::vector<vps::Parameter> parameters);

  Status CheckLayout(const vps::Layout&) override { return {}; }
  Result<std::shared_ptr<void>> Prepare(const elastic::LayoutInstance&) override {
    return std::shared_ptr<void>(std::make_shared<int>());
  }
  std::string JobState() override;

 protected:
  // On the ranks of the first layout, before the first step.
  virtual Status Begin() = 0;
  virtual void Step() = 0;
  // After each committed switch, on the ranks that are active then.
  virtual Status Entered(const std::optional<std::string>& role_state) = 0;
  virtual Status AfterStep() { return {}; }
  virtual Status AtEnd() { return {}; }
  // One rank, on a background thread: a switch that was not made.
  virtual Status RolledBack(const std::string& reason) {
    return Internal("rolled back: {}", reason);
  }

  elastic::LayoutInstance& current() { return rank_->current(); }
  const vps::Layout& layout() { return current().map->layout(); }
  void CountAsDone() { ++done_; }

  const ChildArgs child_;
  std::unique_ptr<ElasticRank> rank_;
  int64_t step_ = 0;
  std::vector<int64_t> entered_ = {0};  // the last step before each layout, from the first one on
  const std::string first_;
  const std::vector<std::string> switches_;

 private:
  Status StepAndBoundary();
  void CheckReport(const elastic::SwitchReport& report);

  size_t done_ = 0;   // switches made
  size_t asked_ = 0;  // of switches_, by anyone as far as this rank knows
  Status bad_report_;
};

// A loop whose fp32 state is known: element i of tensor t starts as Start(t, i), and each step adds to
// it what Gain says of its tensor.
class CountingLoop : public Loop {
 public:
  using Loop::Loop;

 protected:
  // Per step; small whole numbers, so that sums are exact.
  virtual float Gain(const vps::StateCatalog& catalog, vps::TensorId tensor) = 0;
  // What this rank adds in the layout it is in; equal to Gain in a right program.
  virtual float GainHere(const vps::Shard& shard) {
    return Gain(current().map->catalog(), shard.tensor);
  }

  Status Begin() override;
  void Step() override;
  // kDataLoss if an element of this rank is not what the steps so far make of it.
  Status Entered(const std::optional<std::string>& role_state) override;
};

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_TESTING_LOOP_H_
