#include "dynatrain/engine/fair_share.h"

#include <algorithm>
#include <limits>

#include "dynatrain/base/check.h"

namespace dynatrain::engine {

std::vector<double> FairRates(const std::vector<double>& capacity,
                              const std::vector<std::vector<int32_t>>& links_of) {
  std::vector<double> left = capacity;
  std::vector<int32_t> open(capacity.size(), 0);  // flows on the link without a rate yet
  for (const auto& links : links_of) {
    DT_CHECK(!links.empty());
    for (const int32_t link : links) ++open[static_cast<size_t>(link)];
  }
  std::vector<double> rates(links_of.size(), -1);
  size_t unset = links_of.size();
  while (unset > 0) {
    double share = std::numeric_limits<double>::infinity();
    for (size_t l = 0; l < left.size(); ++l) {
      if (open[l] > 0) share = std::min(share, std::max(left[l], 0.0) / open[l]);
    }
    // Links that are full at this share, taken before any flow is fixed.
    std::vector<bool> full(left.size(), false);
    for (size_t l = 0; l < left.size(); ++l) {
      full[l] = open[l] > 0 && std::max(left[l], 0.0) / open[l] <= share * (1 + 1e-9);
    }
    for (size_t f = 0; f < links_of.size(); ++f) {
      if (rates[f] >= 0) continue;
      const bool stays = std::any_of(links_of[f].begin(), links_of[f].end(), [&full](int32_t link) {
        return full[static_cast<size_t>(link)];
      });
      if (!stays) continue;
      rates[f] = share;
      --unset;
      for (const int32_t link : links_of[f]) {
        left[static_cast<size_t>(link)] -= share;
        --open[static_cast<size_t>(link)];
      }
    }
  }
  return rates;
}

}  // namespace dynatrain::engine
