#include "dynatrain/engine/simulate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "dynatrain/engine/fair_share.h"
#include "dynatrain/engine/order.h"

namespace dynatrain::engine {
namespace {

using Kind = Action::Kind;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr ByteCount kAcknowledgementBytes = 8;

// A message between its posts and its last byte.
struct Flow {
  ByteCount bytes = 0;
  int32_t phase = 0;
  bool acknowledgement = false;
  int posts = 0;          // 2: both ends are there
  double start = kNever;  // of the first byte
  double packed = 0;      // when the last byte is ready to go
  double left = 0;        // bytes
  std::vector<int32_t> links;
};

// First and last byte of a message that has come.
struct Ended {
  double start;
  double end;
};

// One rank: its actions, and the time until which it is busy.
struct Actor {
  const Program* program;
  std::vector<Action> actions;
  size_t next = 0;
  double clock = 0;
};

// Ranks and nodes as links: out and in.
class Links {
 public:
  Links(const std::vector<Program>& programs, const planner::Topology& topology)
      : topology_(topology) {
    for (const Program& program : programs) {
      Add({0, program.rank}, fmt::format("rank {}", program.rank), topology.intra_node_bytes_per_s);
      const int32_t node = topology.NodeOf(program.rank);
      if (!index_.contains({1, node}))
        Add({1, node}, fmt::format("node {}", node), topology.inter_node_bytes_per_s);
    }
  }

  std::vector<int32_t> Between(RankId from, RankId to) const {
    std::vector<int32_t> links = {index_.at({0, from}), index_.at({0, to}) + 1};
    const int32_t out = topology_.NodeOf(from);
    const int32_t in = topology_.NodeOf(to);
    if (out != in) links.insert(links.end(), {index_.at({1, out}), index_.at({1, in}) + 1});
    return links;
  }

  const std::vector<double>& rates() const { return rates_; }

  void Carry(const Flow& flow) {
    for (const int32_t link : flow.links) uses_[static_cast<size_t>(link)].bytes += flow.bytes;
  }

  std::vector<LinkUse> Uses() const {
    std::vector<LinkUse> used;
    for (size_t i = 0; i < uses_.size(); ++i) {
      if (uses_[i].bytes == 0) continue;
      used.push_back(uses_[i]);
      used.back().busy_s = static_cast<double>(uses_[i].bytes) / rates_[i];
    }
    std::stable_sort(used.begin(), used.end(),
                     [](const LinkUse& a, const LinkUse& b) { return a.busy_s > b.busy_s; });
    return used;
  }

 private:
  using Id = std::pair<int, int32_t>;  // 0 rank, 1 node

  void Add(Id id, const std::string& name, double rate) {
    index_[id] = static_cast<int32_t>(rates_.size());
    for (const char* direction : {" out", " in"}) {
      rates_.push_back(rate);
      uses_.push_back({name + direction, 0, 0});
    }
  }

  const planner::Topology& topology_;
  std::map<Id, int32_t> index_;  // of the link out; the link in follows
  std::vector<double> rates_;
  std::vector<LinkUse> uses_;
};

class Simulation {
 public:
  Simulation(const std::vector<Program>& programs, const planner::Topology& topology,
             const SimulationOptions& options)
      : options_(options), topology_(topology), links_(programs, topology) {
    for (const Program& program : programs) actors_.push_back({&program, ActionsOf(program), 0, 0});
  }

  Result<SimulationReport> Run() {
    while (true) {
      for (Actor& actor : actors_) Advance(&actor);
      if (!Step()) break;
    }
    for (const Actor& actor : actors_) {
      if (actor.next < actor.actions.size()) {
        return Internal("the programs deadlock: rank {} never ends", actor.program->rank);
      }
      report_.rank_seconds.push_back(actor.clock);
      report_.seconds = std::max(report_.seconds, actor.clock);
    }
    report_.links = links_.Uses();
    std::stable_sort(
        report_.timeline.begin(), report_.timeline.end(),
        [](const TimelineEntry& a, const TimelineEntry& b) { return a.begin_s < b.begin_s; });
    return std::move(report_);
  }

 private:
  // Everything that the rank can do without waiting for a flow that has not ended.
  void Advance(Actor* actor) {
    for (; actor->next < actor->actions.size(); ++actor->next) {
      const Action& action = actor->actions[actor->next];
      const std::optional<WireOp> op = WireOpOf(*actor->program, action);
      if (!op) {
        DoLocal(actor, action);
      } else if (!op->finishes) {
        Post(actor, action, *op);
      } else {
        const auto done = ended_.find(KeyOf(actor->program->rank, action, *op));
        if (done == ended_.end()) return;
        if (action.kind == Kind::kFinishReceive) {
          TakeIn(actor, action.phase, *op->message, done->second);
        } else {
          actor->clock = std::max(actor->clock, done->second.end);
        }
      }
    }
  }

  // Of a rank's own work on one chunk: packing or unpacking it if need be, and hashing it.
  double ChunkSeconds(const Actor& actor, const Message& message) const {
    const ByteCount most = actor.program->chunk_bytes;
    double seconds = 0;
    if (options_.copy_bytes_per_s > 0)
      seconds +=
          static_cast<double>(std::min(message.staging_bytes, most)) / options_.copy_bytes_per_s;
    if (checks() && options_.check_bytes_per_s > 0)
      seconds += static_cast<double>(std::min(message.bytes, most)) / options_.check_bytes_per_s;
    return seconds;
  }

  bool checks() const { return options_.verify != Verify::kOff; }

  void Check(Actor* actor, int32_t phase, const Message& message) {
    if (checks())
      Work(actor, TimelineEntry::Kind::kCheck, phase, message.bytes, options_.check_bytes_per_s);
  }

  // Chunk by chunk from the first one on, but not done before the last one has come and is worked
  // on too.
  void TakeIn(Actor* actor, int32_t phase, const Message& message, const Ended& ended) {
    const double not_before = std::max(actor->clock, ended.end) + ChunkSeconds(*actor, message);
    actor->clock = std::max(actor->clock, ended.start);
    Work(actor, TimelineEntry::Kind::kUnpack, phase, message.staging_bytes,
         options_.copy_bytes_per_s);
    Check(actor, phase, message);
    if (actor->clock >= not_before) return;
    // The last chunk's work is what ends then.
    if (!report_.timeline.empty() && report_.timeline.back().end_s == actor->clock)
      report_.timeline.back().end_s = not_before;
    actor->clock = not_before;
  }

  void DoLocal(Actor* actor, const Action& action) {
    const Phase& phase = actor->program->phases[static_cast<size_t>(action.phase)];
    ByteCount bytes = 0;
    if (action.kind == Kind::kCopies) {
      for (const LocalCopy& copy : phase.copies) bytes += copy.to.bytes();
      Work(actor, TimelineEntry::Kind::kCopy, action.phase, bytes, options_.copy_bytes_per_s);
    }
  }

  void Work(Actor* actor, TimelineEntry::Kind kind, int32_t phase, ByteCount bytes, double rate) {
    if (bytes == 0 || rate <= 0) return;
    const double begin = actor->clock;
    actor->clock += static_cast<double>(bytes) / rate;
    const RankId rank = actor->program->rank;
    if (options_.timeline)
      report_.timeline.push_back({kind, rank, rank, phase, bytes, begin, actor->clock});
  }

  void Post(Actor* actor, const Action& action, const WireOp& op) {
    const bool data = action.kind == Kind::kPostSend || action.kind == Kind::kPostReceive;
    actor->clock += options_.message_s;
    Flow& flow = flows_[KeyOf(actor->program->rank, action, op)];
    double ready = actor->clock;
    if (action.kind == Kind::kPostSend) {
      ready += ChunkSeconds(*actor, *op.message);
      Work(actor, TimelineEntry::Kind::kPack, action.phase, op.message->staging_bytes,
           options_.copy_bytes_per_s);
      Check(actor, action.phase, *op.message);
      flow.packed = actor->clock;
    }
    ++flow.posts;
    flow.start = flow.posts == 1 ? ready : std::max(flow.start, ready);
    flow.phase = action.phase;
    flow.acknowledgement = !data;
    flow.bytes = data ? op.message->bytes + HashBytes(*op.message) : kAcknowledgementBytes;
    if (flow.posts < 2) return;
    const WireKey key = KeyOf(actor->program->rank, action, op);
    flow.start += options_.latency_s;
    flow.left = static_cast<double>(flow.bytes);
    flow.links = links_.Between(key.from, key.to);
    waiting_.emplace(flow.start, key);
  }

  ByteCount HashBytes(const Message& message) const {
    return options_.verify == Verify::kOff
               ? 0
               : static_cast<ByteCount>(message.fragments.size() * sizeof(uint64_t));
  }

  // To the next moment at which a flow starts or ends; false if there is none.
  bool Step() {
    if (running_.empty() && waiting_.empty()) return false;
    const double start = waiting_.empty() ? kNever : waiting_.begin()->first;
    if (start <= now_ || start <= NextEnd()) {
      MoveTo(std::max(now_, start));
      StartFlows();
      return true;
    }
    MoveTo(NextEnd());
    EndFlows();
    return true;
  }

  double NextEnd() const {
    double end = kNever;
    for (size_t i = 0; i < running_.size(); ++i)
      end = std::min(end, now_ + flows_.at(running_[i]).left / rates_[i]);
    return end;
  }

  void MoveTo(double time) {
    for (size_t i = 0; i < running_.size(); ++i)
      flows_.at(running_[i]).left -= rates_[i] * (time - now_);
    now_ = time;
  }

  void StartFlows() {
    while (!waiting_.empty() && waiting_.begin()->first <= now_) {
      running_.push_back(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
    }
    Reshare();
  }

  void EndFlows() {
    std::vector<WireKey> still;
    for (size_t i = 0; i < running_.size(); ++i) {
      const WireKey key = running_[i];
      Flow& flow = flows_.at(key);
      // Late in virtual time a moment may be longer than what a fast flow has left.
      if (flow.left > 1e-3 && now_ + flow.left / rates_[i] > now_) {
        still.push_back(key);
        continue;
      }
      ended_[key] = {flow.start, std::max(now_, flow.packed)};
      Account(key, flow);
      flows_.erase(key);
    }
    running_ = std::move(still);
    Reshare();
  }

  void Account(const WireKey& key, const Flow& flow) {
    links_.Carry(flow);
    report_.wire_bytes += flow.bytes;
    if (topology_.NodeOf(key.from) != topology_.NodeOf(key.to))
      report_.cross_node_bytes += flow.bytes;
    if (!options_.timeline || flow.acknowledgement) return;
    report_.timeline.push_back({TimelineEntry::Kind::kMessage, key.to, key.from, flow.phase,
                                flow.bytes, flow.start, now_});
  }

  void Reshare() {
    std::vector<std::vector<int32_t>> links;
    for (const WireKey& key : running_) links.push_back(flows_.at(key).links);
    rates_ = FairRates(links_.rates(), links);
  }

  const SimulationOptions& options_;
  const planner::Topology& topology_;
  Links links_;
  std::vector<Actor> actors_;
  std::map<WireKey, Flow> flows_;
  std::multimap<double, WireKey> waiting_;  // for their start
  std::vector<WireKey> running_;
  std::vector<double> rates_;  // of running_
  std::map<WireKey, Ended> ended_;
  double now_ = 0;
  SimulationReport report_;
};

}  // namespace

Result<SimulationReport> Simulate(const std::vector<Program>& programs,
                                  const planner::Topology& topology,
                                  const SimulationOptions& options) {
  if (!(topology.intra_node_bytes_per_s > 0) || !(topology.inter_node_bytes_per_s > 0)) {
    return InvalidArgument(
        "topology {}: links of {} and {} bytes per second; rates above 0 are right", topology.name,
        topology.intra_node_bytes_per_s, topology.inter_node_bytes_per_s);
  }
  return Simulation(programs, topology, options).Run();
}

}  // namespace dynatrain::engine
