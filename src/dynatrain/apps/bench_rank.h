// One rank of `dynatrain bench`: moves state again and again, and between the moves the same bytes
// in their raw form.
#ifndef DYNATRAIN_APPS_BENCH_RANK_H_
#define DYNATRAIN_APPS_BENCH_RANK_H_

#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "dynatrain/apps/bench_config.h"
#include "dynatrain/transport/transport.h"

namespace dynatrain::apps {

// One buffer for each peer.
using PeerBuffers = std::map<RankId, std::vector<std::byte>>;

// What the bench needs of a backend: a transport over the ranks, and its fastest plain way to send
// and receive whole buffers with all peers at once, which the limit is measured with.
struct BenchWire {
  std::unique_ptr<transport::Transport> transport;
  std::function<Status(const PeerBuffers& out, PeerBuffers* in)> exchange_raw;
  bool own_process = true;  // the process's memory is this rank's alone
};
using ConnectWire = std::function<Result<BenchWire>(const std::vector<RankId>& ranks,
                                                    const std::vector<RankId>& peers)>;

// What a rank tells: an event's name and fields.
//   rates   {bytes, copy_s, check_s, latency_s, message_s}   bytes packed and hashed, all at once
//   limit   {pass, begin, end, cpu}                                seconds of the monotonic clock
//   run     {pass, begin, end, pack, wire, unpack, copy, check, memory, cpu,
//            measured_peak_extra_bytes}
//   digest  {before: [digest, replica], after: ...}                       of the first pass
// cpu is processor time of the process. pass 0 is not counted.
using Tell = std::function<void(std::string_view name, nlohmann::json fields)>;

Status RunBenchRank(const BenchConfig& config, RankId rank, const ConnectWire& connect,
                    const Tell& tell);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_BENCH_RANK_H_
