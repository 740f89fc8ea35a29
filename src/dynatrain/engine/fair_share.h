// Flows over shared links: the rates at which they run when every link is shared fairly.
#ifndef DYNATRAIN_ENGINE_FAIR_SHARE_H_
#define DYNATRAIN_ENGINE_FAIR_SHARE_H_

#include <cstdint>
#include <vector>

namespace dynatrain::engine {

// Max-min fair rates by progressive filling: all flows grow alike until a link is full, its flows
// stay, the others go on (Bertsekas and Gallager, Data Networks, 6.5.2). `links_of[f]` are the
// links of flow f, each at most once; every flow has one at least. Returns a rate per flow, in the
// unit of `capacity`.
std::vector<double> FairRates(const std::vector<double>& capacity,
                              const std::vector<std::vector<int32_t>>& links_of);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_FAIR_SHARE_H_
