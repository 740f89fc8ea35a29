#include "dynatrain/planner/assignment.h"

#include <algorithm>
#include <functional>
#include <set>

#include "dynatrain/base/check.h"

namespace dynatrain::planner {
namespace {

// Kuhn's augmenting paths over the pairs that `allowed` lets through.
class Matching {
 public:
  Matching(int rows, int columns, std::function<bool(int, int)> allowed)
      : allowed_(std::move(allowed)),
        row_of_(static_cast<size_t>(columns), -1),
        column_of_(static_cast<size_t>(rows), -1) {}

  bool Complete() {
    for (int r = 0; r < static_cast<int>(column_of_.size()); ++r) {
      if (column_of_[static_cast<size_t>(r)] >= 0) continue;
      seen_.assign(row_of_.size(), false);
      if (!Augment(r, -1)) return false;
    }
    return true;
  }

  // Makes `row` take `column` if the other rows from `row` on can still be placed; earlier rows are
  // fixed.
  bool Fix(int row, int column) {
    const int old = column_of_[static_cast<size_t>(row)];
    if (old == column) return true;
    const int other = row_of_[static_cast<size_t>(column)];
    if (other >= 0 && other < row) return false;
    const auto saved_rows = row_of_;
    const auto saved_columns = column_of_;
    row_of_[static_cast<size_t>(old)] = -1;
    row_of_[static_cast<size_t>(column)] = row;
    column_of_[static_cast<size_t>(row)] = column;
    if (other < 0) return true;
    column_of_[static_cast<size_t>(other)] = -1;
    seen_.assign(row_of_.size(), false);
    if (Augment(other, row)) return true;
    row_of_ = saved_rows;
    column_of_ = saved_columns;
    return false;
  }

  const std::vector<int>& column_of() const { return column_of_; }

 private:
  // Rows up to `fixed` keep their columns.
  bool Augment(int row, int fixed) {
    for (int c = 0; c < static_cast<int>(row_of_.size()); ++c) {
      const auto column = static_cast<size_t>(c);
      if (seen_[column] || !allowed_(row, c)) continue;
      const int owner = row_of_[column];
      if (owner >= 0 && owner <= fixed) continue;
      seen_[column] = true;
      if (owner >= 0 && !Augment(owner, fixed)) continue;
      row_of_[column] = row;
      column_of_[static_cast<size_t>(row)] = c;
      return true;
    }
    return false;
  }

  std::function<bool(int, int)> allowed_;
  std::vector<int> row_of_;
  std::vector<int> column_of_;
  std::vector<bool> seen_;
};

bool CanPlace(const CostTable<int64_t>& table, int64_t most) {
  Matching matching(table.rows, table.columns, [&](int r, int c) {
    const std::optional<int64_t>& cost = table.at(r, c);
    return cost.has_value() && *cost <= most;
  });
  return matching.Complete();
}

// Kuhn-Munkres by shortest augmenting paths with potentials, over a square table: the optima are
// the perfect matchings of pairs whose reduced cost is 0.
class Potentials {
 public:
  explicit Potentials(const CostTable<PairCost>& table)
      : table_(table),
        row_(static_cast<size_t>(table.rows) + 1),
        column_(static_cast<size_t>(table.columns) + 1),
        row_of_(static_cast<size_t>(table.columns) + 1, 0) {}

  bool Solve() {
    for (int r = 1; r <= table_.rows; ++r) {
      if (!Insert(r)) return false;
    }
    return true;
  }

  bool Tight(int r, int c) const {
    const std::optional<PairCost>& cost = table_.at(r, c);
    return cost.has_value() &&
           *cost - row_[static_cast<size_t>(r) + 1] - column_[static_cast<size_t>(c) + 1] ==
               PairCost{};
  }

 private:
  bool Insert(int row) {
    const size_t columns = column_.size();
    std::vector<std::optional<PairCost>> slack(columns);
    std::vector<size_t> before(columns, 0);
    std::vector<bool> used(columns, false);
    row_of_[0] = row;
    size_t at = 0;
    do {
      used[at] = true;
      const int r = row_of_[at];
      std::optional<PairCost> delta;
      size_t next = 0;
      for (size_t c = 1; c < columns; ++c) {
        if (used[c]) continue;
        const std::optional<PairCost>& cost = table_.at(r - 1, static_cast<int>(c) - 1);
        if (cost) {
          const PairCost reduced = *cost - row_[static_cast<size_t>(r)] - column_[c];
          if (!slack[c] || reduced < *slack[c]) {
            slack[c] = reduced;
            before[c] = at;
          }
        }
        if (slack[c] && (!delta || *slack[c] < *delta)) {
          delta = slack[c];
          next = c;
        }
      }
      if (!delta) return false;
      for (size_t c = 0; c < columns; ++c) {
        if (used[c]) {
          row_[static_cast<size_t>(row_of_[c])] += *delta;
          column_[c] -= *delta;
        } else if (slack[c]) {
          *slack[c] -= *delta;
        }
      }
      at = next;
    } while (row_of_[at] != 0);
    for (; at != 0; at = before[at]) row_of_[at] = row_of_[before[at]];
    return true;
  }

  const CostTable<PairCost>& table_;
  std::vector<PairCost> row_;
  std::vector<PairCost> column_;
  std::vector<int> row_of_;
};

// Adds rows that cost nothing until the table is square, so that every optimum takes every column.
CostTable<PairCost> Squared(const CostTable<PairCost>& table) {
  CostTable<PairCost> square(table.columns, table.columns);
  for (int r = 0; r < table.columns; ++r) {
    for (int c = 0; c < table.columns; ++c) {
      square.at(r, c) = r < table.rows ? table.at(r, c) : PairCost{};
    }
  }
  return square;
}

}  // namespace

std::optional<int64_t> BottleneckCost(const CostTable<int64_t>& table) {
  if (table.rows == 0) return 0;
  std::set<int64_t> distinct;
  for (const std::optional<int64_t>& cost : table.cells) {
    if (cost) distinct.insert(*cost);
  }
  const std::vector<int64_t> costs(distinct.begin(), distinct.end());
  const auto least = std::partition_point(costs.begin(), costs.end(),
                                          [&](int64_t most) { return !CanPlace(table, most); });
  if (least == costs.end()) return std::nullopt;
  return *least;
}

std::optional<Assigned> CheapestAssignment(const CostTable<PairCost>& table,
                                           const std::vector<int64_t>& order) {
  DT_CHECK(table.rows <= table.columns);
  const CostTable<PairCost> square = Squared(table);
  Potentials potentials(square);
  if (!potentials.Solve()) return std::nullopt;
  Matching matching(square.rows, square.columns,
                    [&](int r, int c) { return potentials.Tight(r, c); });
  DT_CHECK(matching.Complete());
  Assigned assigned;
  for (int r = 0; r < table.rows; ++r) {
    std::vector<int> columns;
    for (int c = 0; c < table.columns; ++c) {
      if (potentials.Tight(r, c)) columns.push_back(c);
    }
    const auto rank = [&](int c) {
      return order[static_cast<size_t>(r) * static_cast<size_t>(table.columns) +
                   static_cast<size_t>(c)];
    };
    std::stable_sort(columns.begin(), columns.end(),
                     [&](int a, int b) { return rank(a) < rank(b); });
    const bool placed =
        std::any_of(columns.begin(), columns.end(), [&](int c) { return matching.Fix(r, c); });
    DT_CHECK(placed);
    const int column = matching.column_of()[static_cast<size_t>(r)];
    assigned.column_of.push_back(column);
    assigned.total += *table.at(r, column);
  }
  return assigned;
}

}  // namespace dynatrain::planner
