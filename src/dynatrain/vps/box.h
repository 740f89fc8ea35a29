// Box: a half-open N-d index region [lo, hi) of a logical tensor — the unit in which all state is
// held, compared and moved. Reconfiguration is intersection of boxes.
//
//   Box rows({2, 0}, {4, 8});            // rows 2..3 of an [.., 8] tensor
//   Box columns({0, 4}, {6, 8});
//   Intersect(rows, columns)             // == Box({2, 4}, {4, 8})
//
// A box of zero dims is a scalar: one element. A box with an empty axis has no element.
#ifndef DYNATRAIN_VPS_BOX_H_
#define DYNATRAIN_VPS_BOX_H_

#include <array>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "dynatrain/base/check.h"

namespace dynatrain::vps {

inline constexpr int kMaxDims = 6;

// Up to kMaxDims indices, extents or strides (elements), one per axis. A value type, never on the
// heap.
class Coords {
 public:
  Coords() = default;
  Coords(std::initializer_list<int64_t> values)
      : Coords(std::span<const int64_t>(values.begin(), values.size())) {}
  explicit Coords(std::span<const int64_t> values) : dims_(static_cast<int>(values.size())) {
    DT_CHECK(values.size() <= kMaxDims);
    for (size_t i = 0; i < values.size(); ++i) values_[i] = values[i];
  }
  static Coords Filled(int dims, int64_t value) {
    DT_CHECK(dims >= 0 && dims <= kMaxDims);
    Coords c;
    c.dims_ = dims;
    for (int i = 0; i < dims; ++i) c[i] = value;
    return c;
  }

  int dims() const { return dims_; }
  int64_t operator[](int axis) const { return values_[static_cast<size_t>(axis)]; }
  int64_t& operator[](int axis) { return values_[static_cast<size_t>(axis)]; }
  std::span<const int64_t> span() const { return {values_.data(), static_cast<size_t>(dims_)}; }

  friend bool operator==(const Coords&, const Coords&) = default;
  friend auto operator<=>(const Coords&,
                          const Coords&) = default;  // fewer dims first, then lexicographic

 private:
  int dims_ = 0;
  std::array<int64_t, kMaxDims> values_{};  // zero past dims_
};

using Shape = Coords;

// Product of the extents; 1 for zero dims.
int64_t ElemCount(const Shape& shape);

// Strides (elements) of a dense row-major tensor of this shape: the last axis has stride 1.
Coords RowMajorStrides(const Shape& shape);

class Box {
 public:
  Box() = default;  // the scalar box
  Box(const Coords& lo, const Coords& hi) : lo_(lo), hi_(hi) { DT_CHECK(lo.dims() == hi.dims()); }
  // All of a tensor.
  static Box Whole(const Shape& shape) { return {Coords::Filled(shape.dims(), 0), shape}; }

  int dims() const { return lo_.dims(); }
  const Coords& lo() const { return lo_; }
  const Coords& hi() const { return hi_; }
  int64_t extent(int axis) const { return hi_[axis] - lo_[axis]; }
  Shape shape() const;
  int64_t elems() const;  // 0 if empty
  bool empty() const { return elems() == 0; }
  bool Contains(const Box& other) const;  // true for an empty `other`
  bool Contains(const Coords& index) const;
  std::string ToString() const;  // "[2:4, 4:8]"

  friend bool operator==(const Box&, const Box&) = default;
  friend auto operator<=>(const Box&, const Box&) = default;  // by lo, then hi

 private:
  Coords lo_, hi_;
};

// The common region; some empty box if there is none. Precondition: equal dims.
Box Intersect(const Box& a, const Box& b);
bool Overlaps(const Box& a, const Box& b);

// The boxes, at most 2 * dims - 1 and in row-major order, that hold exactly the elements [begin,
// end) of `within` counted in row-major order. Precondition: 0 <= begin <= end <= within.elems().
//   FlatRangeBoxes(Box::Whole({3, 4}), 2, 9) == { [0:1, 2:4], [1:2, 0:4], [2:3, 0:1] }
// Middle runs of whole rows come as one box.
void AppendFlatRangeBoxes(const Box& within, int64_t begin, int64_t end, std::vector<Box>* boxes);

// Row-major index inside `within` of the element at `index`. Precondition: within.Contains(index).
int64_t FlatIndex(const Box& within, const Coords& index);

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_BOX_H_
