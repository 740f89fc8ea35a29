#include "dynatrain/vps/local_tensor.h"

#include <algorithm>
#include <optional>

namespace dynatrain::vps {

namespace {

Box WithRange(const Box& box, int axis, int64_t begin, int64_t end) {
  Coords lo = box.lo();
  Coords hi = box.hi();
  lo[axis] = begin;
  hi[axis] = end;
  return {lo, hi};
}

// All that the expert group has of the parameter; none if it has other experts.
std::optional<Box> ExpertBox(const Parameter& p, const PartGrid& grid, int32_t expert_group) {
  const Box whole = Box::Whole(p.shape);
  if (!p.experts || grid.expert_degree == 1) return whole;
  const bool stack = p.experts->axis >= 0;
  const int64_t count = stack ? p.shape[p.experts->axis] : p.experts->count;
  const AxisRange range = SplitAxis(Split::Balanced(0), count, grid.expert_degree, expert_group);
  if (stack) return WithRange(whole, p.experts->axis, range.begin, range.end);
  if (p.experts->index < range.begin || p.experts->index >= range.end) return std::nullopt;
  return whole;
}

// Rows [begin, end) of the leading axes as one.
void AppendRows(const Parameter& p, const Box& box, const AxisRange& rows,
                std::vector<Box>* boxes) {
  const Box leading(Coords(box.lo().span().first(static_cast<size_t>(p.row_axes))),
                    Coords(box.hi().span().first(static_cast<size_t>(p.row_axes))));
  std::vector<Box> row_boxes;
  AppendFlatRangeBoxes(leading, rows.begin, rows.end, &row_boxes);
  for (const Box& row_box : row_boxes) {
    Coords lo = box.lo();
    Coords hi = box.hi();
    for (int axis = 0; axis < p.row_axes; ++axis) {
      lo[axis] = row_box.lo()[axis];
      hi[axis] = row_box.hi()[axis];
    }
    boxes->emplace_back(lo, hi);
  }
}

int64_t RowCount(const Parameter& p) {
  int64_t rows = 1;
  for (int axis = 0; axis < p.row_axes; ++axis) rows *= p.shape[axis];
  return rows;
}

// The pieces that position `t` of the split has of `box`, whose parts start at `first_part`.
void AppendSplitPieces(const Parameter& p, const Box& box, int32_t degree, int32_t first_part,
                       int32_t t, std::vector<Piece>* pieces) {
  const Split& split = p.split;
  const int32_t part = first_part + t;
  if (split.axis < 0) {
    pieces->push_back({box, first_part, first_part + degree});
    return;
  }
  const int64_t extent = p.shape[split.axis];
  if (split.rule == Split::Rule::kRows) {
    std::vector<Box> boxes;
    AppendRows(p, box, SplitAxis(split, RowCount(p), degree, t), &boxes);
    for (const Box& rows : boxes) pieces->push_back({rows, part, part + 1});
    return;
  }
  if (split.rule == Split::Rule::kGroups && degree > extent) {
    if (extent == 0) return;
    const auto per_group = static_cast<int32_t>(degree / extent);
    const int32_t group = t / per_group;
    const int64_t entries = p.shape[split.axis + 1];
    const int64_t own = entries - split.shared;
    const AxisRange range = SplitAxis(split, own, per_group, t % per_group);
    const Box of_group = WithRange(box, split.axis, group, group + 1);
    const int32_t first = first_part + group * per_group;
    pieces->push_back(
        {WithRange(of_group, split.axis + 1, range.begin, range.end), part, part + 1});
    pieces->push_back(
        {WithRange(of_group, split.axis + 1, own, entries), first, first + per_group});
    return;
  }
  const AxisRange range = SplitAxis(split, extent, degree, t);
  pieces->push_back({WithRange(box, split.axis, range.begin, range.end), part, part + 1});
}

}  // namespace

void AppendPieces(const Parameter& p, const PartGrid& grid, int32_t part,
                  std::vector<Piece>* pieces) {
  const int32_t expert_group = part / grid.split_degree;
  const std::optional<Box> box = ExpertBox(p, grid, expert_group);
  if (!box) return;
  std::vector<Piece> plain;
  AppendSplitPieces(p, *box, grid.split_degree, expert_group * grid.split_degree,
                    part % grid.split_degree, &plain);
  const auto append = [pieces](const Piece& piece, const Box& piece_box) {
    if (!piece_box.empty()) pieces->push_back({piece_box, piece.part_begin, piece.part_end});
  };
  if (!p.stored) {
    for (const Piece& piece : plain) append(piece, piece.box);
    return;
  }
  int64_t begin = 0;
  for (const int64_t size : p.stored->sizes) {
    const Box stored = WithRange(Box::Whole(p.shape), p.stored->axis, begin, begin + size);
    for (const Piece& piece : plain) append(piece, Intersect(piece.box, stored));
    begin += size;
  }
}

int64_t LocalElems(const Parameter& p, const PartGrid& grid, int32_t part) {
  if (p.split.axis >= 0 && p.split.rule == Split::Rule::kPadded && p.shape[0] > 0) {
    const std::optional<Box> box = ExpertBox(p, grid, part / grid.split_degree);
    if (!box) return 0;
    const int64_t unit = p.split.block * grid.split_degree;
    return box->elems() / p.shape[0] * ((p.shape[0] + unit - 1) / unit * p.split.block);
  }
  std::vector<Piece> pieces;
  AppendPieces(p, grid, part, &pieces);
  int64_t elems = 0;
  for (const Piece& piece : pieces) elems += piece.box.elems();
  return elems;
}

int64_t LocalRowElems(const Parameter& p, const PartGrid& grid, int32_t part) {
  std::vector<Piece> pieces;
  AppendPieces(p, grid, part, &pieces);
  // Without pieces there are no rows, or rows of filler alone, whose split leaves them whole.
  const Box box = pieces.empty() ? Box::Whole(p.shape) : pieces[0].box;
  int64_t elems = 1;
  for (int axis = p.row_axes; axis < p.shape.dims(); ++axis) elems *= box.extent(axis);
  return std::max<int64_t>(elems, 1);
}

AxisRange ExpertGroupsOf(const Parameter& p, const PartGrid& grid, const Box& box) {
  if (!p.experts || grid.expert_degree == 1) return {0, grid.expert_degree};
  const bool stack = p.experts->axis >= 0;
  const int64_t count = stack ? p.shape[p.experts->axis] : p.experts->count;
  const int64_t small = count / grid.expert_degree;
  const int64_t larger_groups = count % grid.expert_degree;
  const auto group_of = [&](int64_t expert) {  // of a balanced split
    const int64_t in_larger = larger_groups * (small + 1);
    return expert < in_larger ? expert / (small + 1) : larger_groups + (expert - in_larger) / small;
  };
  if (box.empty()) return {0, 0};
  const int64_t first = stack ? box.lo()[p.experts->axis] : p.experts->index;
  const int64_t last = stack ? box.hi()[p.experts->axis] - 1 : p.experts->index;
  return {group_of(first), group_of(last) + 1};
}

Status CheckSplitFits(const Parameter& p, const PartGrid& grid, std::string_view degree_name) {
  const Split& split = p.split;
  if (split.axis < 0) return Status::Ok();
  const int32_t degree = grid.split_degree;
  const int64_t extent = p.shape[split.axis];
  if (split.rule == Split::Rule::kExplicit && static_cast<int64_t>(split.sizes.size()) != degree) {
    return InvalidArgument("tensor {}: axis {} is declared in {} parts, {}={} needs {}", p.name,
                           split.axis, split.sizes.size(), degree_name, degree, degree);
  }
  if (split.rule == Split::Rule::kGroups && degree > extent && extent > 0 && degree % extent != 0) {
    return InvalidArgument(
        "tensor {}: {} groups of axis {} do not split over {}={}; right is at most {} or a "
        "multiple "
        "of it",
        p.name, extent, split.axis, degree_name, degree, extent);
  }
  if (split.block == 1 || split.rule == Split::Rule::kPadded) return Status::Ok();
  for (int32_t part = 1; part < degree; ++part) {
    const int64_t cut = SplitAxis(split, extent, degree, part).begin;
    if (cut % split.block != 0 && cut != extent) {
      return InvalidArgument(
          "tensor {}: axis {} of {} in blocks of {} does not split over {}={} (rule {}): the cut "
          "at "
          "{} falls inside a block",
          p.name, split.axis, extent, split.block, degree_name, degree, SplitRuleName(split.rule),
          cut);
    }
  }
  return Status::Ok();
}

}  // namespace dynatrain::vps
