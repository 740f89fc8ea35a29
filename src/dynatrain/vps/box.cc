#include "dynatrain/vps/box.h"

#include <algorithm>

#include <fmt/format.h>

namespace dynatrain::vps {

int64_t ElemCount(const Shape& shape) {
  int64_t elems = 1;
  for (const int64_t extent : shape.span()) elems *= extent;
  return elems;
}

Coords RowMajorStrides(const Shape& shape) {
  Coords strides = Coords::Filled(shape.dims(), 1);
  for (int axis = shape.dims() - 2; axis >= 0; --axis) {
    strides[axis] = strides[axis + 1] * shape[axis + 1];
  }
  return strides;
}

Shape Box::shape() const {
  Shape shape = Coords::Filled(dims(), 0);
  for (int axis = 0; axis < dims(); ++axis) shape[axis] = std::max<int64_t>(extent(axis), 0);
  return shape;
}

int64_t Box::elems() const {
  int64_t elems = 1;
  for (int axis = 0; axis < dims(); ++axis) elems *= std::max<int64_t>(extent(axis), 0);
  return elems;
}

bool Box::Contains(const Box& other) const {
  DT_CHECK(dims() == other.dims());
  if (other.empty()) return true;
  for (int axis = 0; axis < dims(); ++axis) {
    if (other.lo_[axis] < lo_[axis] || other.hi_[axis] > hi_[axis]) return false;
  }
  return true;
}

bool Box::Contains(const Coords& index) const {
  DT_CHECK(dims() == index.dims());
  for (int axis = 0; axis < dims(); ++axis) {
    if (index[axis] < lo_[axis] || index[axis] >= hi_[axis]) return false;
  }
  return true;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (int axis = 0; axis < dims(); ++axis) {
    text += fmt::format("{}{}:{}", axis == 0 ? "" : ", ", lo_[axis], hi_[axis]);
  }
  return text + "]";
}

Box Intersect(const Box& a, const Box& b) {
  DT_CHECK(a.dims() == b.dims());
  Coords lo = a.lo();
  Coords hi = a.hi();
  for (int axis = 0; axis < a.dims(); ++axis) {
    lo[axis] = std::max(lo[axis], b.lo()[axis]);
    hi[axis] = std::max(lo[axis], std::min(hi[axis], b.hi()[axis]));
  }
  return {lo, hi};
}

bool Overlaps(const Box& a, const Box& b) {
  DT_CHECK(a.dims() == b.dims());
  for (int axis = 0; axis < a.dims(); ++axis) {
    if (std::max(a.lo()[axis], b.lo()[axis]) >= std::min(a.hi()[axis], b.hi()[axis])) return false;
  }
  return true;
}

namespace {

// `frame` is a single index on every axis before `axis`; [begin, end) counts elements inside it.
void AppendRange(Box frame, int axis, int64_t begin, int64_t end, std::vector<Box>* boxes) {
  if (begin == end) return;
  if (axis == frame.dims()) {
    boxes->push_back(frame);
    return;
  }
  int64_t row_elems = 1;
  for (int inner = axis + 1; inner < frame.dims(); ++inner) row_elems *= frame.extent(inner);
  const auto rows = [&](int64_t first, int64_t last) {
    Coords lo = frame.lo();
    Coords hi = frame.hi();
    lo[axis] += first;
    hi[axis] = frame.lo()[axis] + last;
    return Box(lo, hi);
  };
  int64_t first_whole = begin / row_elems;
  const int64_t end_whole = end / row_elems;
  const int64_t head = begin % row_elems;
  const int64_t tail = end % row_elems;
  if (head != 0 && first_whole == end_whole) {  // inside one row
    AppendRange(rows(first_whole, first_whole + 1), axis + 1, head, tail, boxes);
    return;
  }
  if (head != 0) {
    AppendRange(rows(first_whole, first_whole + 1), axis + 1, head, row_elems, boxes);
    ++first_whole;
  }
  if (first_whole < end_whole) boxes->push_back(rows(first_whole, end_whole));
  if (tail != 0) AppendRange(rows(end_whole, end_whole + 1), axis + 1, 0, tail, boxes);
}

}  // namespace

void AppendFlatRangeBoxes(const Box& within, int64_t begin, int64_t end, std::vector<Box>* boxes) {
  DT_CHECK(0 <= begin && begin <= end && end <= within.elems());
  AppendRange(within, 0, begin, end, boxes);
}

int64_t FlatIndex(const Box& within, const Coords& index) {
  DT_CHECK(within.Contains(index));
  int64_t flat = 0;
  for (int axis = 0; axis < within.dims(); ++axis) {
    flat = flat * within.extent(axis) + (index[axis] - within.lo()[axis]);
  }
  return flat;
}

}  // namespace dynatrain::vps
