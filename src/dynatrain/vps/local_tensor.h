// What one part of a grid has of a parameter, and in which order. Private to vps.
//
// The parts of the dense grid are its tensor-parallel positions; the experts' grid has ep x etp
// parts, part = ep * etp_degree + etp. A local tensor is its pieces one after the other, each
// row-major, then filler (kPadded).
#ifndef DYNATRAIN_VPS_LOCAL_TENSOR_H_
#define DYNATRAIN_VPS_LOCAL_TENSOR_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/vps/box.h"
#include "dynatrain/vps/catalog.h"

namespace dynatrain::vps {

struct PartGrid {
  int32_t split_degree = 1;   // tp or etp
  int32_t expert_degree = 1;  // 1 or ep
  int32_t parts() const { return split_degree * expert_degree; }
};

struct Piece {
  Box box;  // never empty
  // The parts that have it: [part_begin, part_end).
  int32_t part_begin;
  int32_t part_end;
};

// The pieces of `part`, in local order.
void AppendPieces(const Parameter& parameter, const PartGrid& grid, int32_t part,
                  std::vector<Piece>* pieces);

// Elements of the local tensor, with its filler.
int64_t LocalElems(const Parameter& parameter, const PartGrid& grid, int32_t part);

// Elements of one row of the local tensor (see Parameter::row_axes); at least 1.
int64_t LocalRowElems(const Parameter& parameter, const PartGrid& grid, int32_t part);

// The expert groups [begin, end) that can have elements of `box`.
AxisRange ExpertGroupsOf(const Parameter& parameter, const PartGrid& grid, const Box& box);

// Refuses degrees that the split rule cannot serve, naming tensor, axis, extent and degree.
// `degree_name`: "tp" or "etp".
Status CheckSplitFits(const Parameter& parameter, const PartGrid& grid,
                      std::string_view degree_name);

}  // namespace dynatrain::vps

#endif  // DYNATRAIN_VPS_LOCAL_TENSOR_H_
