// For tests: which elements of a parameter each position of a layout has, one element at a time.
// The inside of ElementOracle.
#ifndef DYNATRAIN_VPS_ORACLE_GRID_H_
#define DYNATRAIN_VPS_ORACLE_GRID_H_

#include <compare>
#include <cstdint>
#include <vector>

#include "dynatrain/vps/catalog.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::vps::testing {

// Deals `count` things to `parts` in order: the first ones get one more. The owner of each.
std::vector<int> Dealt(int64_t count, int64_t parts);

// Coordinates of a position in one of the grids: stage, part of the split, expert group.
struct Coordinates {
  int stage = 0, split = 0, expert = 0;
  friend auto operator<=>(const Coordinates&, const Coordinates&) = default;
};
Coordinates Decode(const Layout& layout, bool experts, int position);

// Whether the parameter lies in the experts' grid.
bool InExpertGrid(const Layout& layout, const Parameter& p);
// Whether a position's expert group has this expert; always in the dense grid.
bool OwnsExpert(const Layout& layout, const Parameter& p, int64_t expert, const Coordinates& c);

// Row-major indices of the elements that a position has of a parameter, in local order; -1 is
// filler.
std::vector<int64_t> LocalElements(const Layout& layout, const Parameter& p, const Coordinates& c);

}  // namespace dynatrain::vps::testing

#endif  // DYNATRAIN_VPS_ORACLE_GRID_H_
