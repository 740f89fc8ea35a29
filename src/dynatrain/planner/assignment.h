// Assignments of rows to columns, each row to one column and no column twice: the three kinds that
// role assignment is made of. Costs are integers; kForbidden marks pairs that must not be.
#ifndef DYNATRAIN_PLANNER_ASSIGNMENT_H_
#define DYNATRAIN_PLANNER_ASSIGNMENT_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace dynatrain::planner {

// Compared as a pair: bytes first, then ranks that change.
struct PairCost {
  int64_t bytes = 0;
  int64_t changed = 0;
  friend auto operator<=>(const PairCost&, const PairCost&) = default;
  PairCost& operator+=(const PairCost& o) {
    bytes += o.bytes;
    changed += o.changed;
    return *this;
  }
  PairCost& operator-=(const PairCost& o) {
    bytes -= o.bytes;
    changed -= o.changed;
    return *this;
  }
  friend PairCost operator+(PairCost a, const PairCost& b) { return a += b; }
  friend PairCost operator-(PairCost a, const PairCost& b) { return a -= b; }
};

// rows x columns, row-major; rows <= columns. An absent entry must not be taken.
template <class Cost>
struct CostTable {
  int rows = 0;
  int columns = 0;
  std::vector<std::optional<Cost>> cells;
  CostTable(int r, int c)
      : rows(r), columns(c), cells(static_cast<size_t>(r) * static_cast<size_t>(c)) {}
  std::optional<Cost>& at(int r, int c) { return cells[Index(r, c)]; }
  const std::optional<Cost>& at(int r, int c) const { return cells[Index(r, c)]; }

 private:
  size_t Index(int r, int c) const {
    return static_cast<size_t>(r) * static_cast<size_t>(columns) + static_cast<size_t>(c);
  }
};

// The least possible largest cost; none if the rows cannot all be placed. 0 for no rows.
std::optional<int64_t> BottleneckCost(const CostTable<int64_t>& table);

struct Assigned {
  PairCost total;
  std::vector<int> column_of;  // by row
};
// The least total; among equal ones that whose columns are smallest under `order` (a rank of the
// column for each row: row-major like the table), rows compared from the first on. None if
// impossible.
std::optional<Assigned> CheapestAssignment(const CostTable<PairCost>& table,
                                           const std::vector<int64_t>& order);

}  // namespace dynatrain::planner

#endif  // DYNATRAIN_PLANNER_ASSIGNMENT_H_
