// For tests: the ranks of a layout as threads of one process, over real Gloo groups, and their
// state as whole tensors.
#ifndef DYNATRAIN_TRAINER_TESTING_RANKS_H_
#define DYNATRAIN_TRAINER_TESTING_RANKS_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dynatrain/elastic/switch.h"
#include "dynatrain/trainer/options.h"
#include "dynatrain/trainer/trainer.h"

namespace dynatrain::trainer::testing {

// A small model whose sizes split unevenly, on that file: 3 layers, hidden 24, 6 heads, 3
// key-value heads, ffn 29, 129 tokens; 12 tokens per sequence.
TrainerOptions SmallOptions(const std::string& data_file);

// Whole tensors by name, put together from the parts of many ranks. Any thread may add.
class Tensors {
 public:
  // Parts that overlap must have the same bits. bf16 is widened.
  void AddState(const elastic::LayoutInstance& instance, vps::Kind kind);
  void AddGradients(const vps::StateCatalog& catalog, const std::vector<GradientPart>& parts);
  void Set(const std::string& name, std::vector<float> values);
  // Writes all tensors of `kind` into the instance's buffers.
  void WriteTo(elastic::LayoutInstance* instance, vps::Kind kind) const;

  const std::map<std::string, std::vector<float>>& values() const { return values_; }
  // What is wrong, or empty: elements that nobody added, replicas that differ.
  std::string Faults() const;

 private:
  void Put(const vps::Parameter& parameter, int64_t index, float value);

  mutable std::mutex mutex_;
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, std::vector<bool>> set_;
  std::map<std::string, int64_t> different_;
};

// max |a - b| / max |b|.
double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b);

using RankBody = std::function<Status(elastic::LayoutInstance& instance)>;

// Runs `body` once on each rank of `layout`, with groups and zeroed state. The first error, naming
// the rank.
Status RunRanks(const std::shared_ptr<const vps::StateCatalog>& catalog, const vps::Layout& layout,
                const RankBody& body);

}  // namespace dynatrain::trainer::testing

#endif  // DYNATRAIN_TRAINER_TESTING_RANKS_H_
