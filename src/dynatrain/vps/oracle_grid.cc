#include "dynatrain/vps/oracle_grid.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace dynatrain::vps::testing {

std::vector<int> Dealt(int64_t count, int64_t parts) {
  std::vector<int64_t> sizes(static_cast<size_t>(parts), 0);
  for (int64_t i = 0; i < count; ++i) ++sizes[static_cast<size_t>(i % parts)];
  std::vector<int> owners;
  for (int part = 0; part < parts; ++part) {
    owners.insert(owners.end(), static_cast<size_t>(sizes[static_cast<size_t>(part)]), part);
  }
  return owners;
}

namespace {

// Advances a row-major index; false after the last one.
bool NextIndex(const Shape& shape, Coords* index) {
  for (int axis = shape.dims() - 1; axis >= 0; --axis) {
    if (++(*index)[axis] < shape[axis]) return true;
    (*index)[axis] = 0;
  }
  return false;
}

// Indices per part of kChunk and kPadded.
int64_t ChunkOf(const Split& split, int64_t extent, int64_t parts) {
  const int64_t unit = split.rule == Split::Rule::kPadded ? split.block : 1;
  int64_t chunk = 0;
  while (chunk * parts < extent) chunk += unit;
  return chunk;
}

// The part that each index of an axis belongs to.
std::vector<int> OwnersOfAxis(const Split& split, int64_t extent, int64_t parts) {
  std::vector<int> owners;
  if (split.rule == Split::Rule::kExplicit) {
    for (size_t part = 0; part < split.sizes.size(); ++part) {
      owners.insert(owners.end(), static_cast<size_t>(split.sizes[part]), static_cast<int>(part));
    }
  } else if (split.rule == Split::Rule::kChunk || split.rule == Split::Rule::kPadded) {
    const int64_t chunk = ChunkOf(split, extent, parts);
    for (int64_t i = 0; i < extent; ++i) owners.push_back(static_cast<int>(i / chunk));
  } else {
    return Dealt(extent, parts);
  }
  return owners;
}

std::vector<std::string> Tokens(const std::string& text) {
  std::vector<std::string> tokens(1);
  for (const char c : text) {
    if (c == '-') {
      tokens.emplace_back();
    } else {
      tokens.back() += c;
    }
  }
  return tokens;
}

// The axes of a grid from the smallest stride up, with their degrees.
std::vector<std::pair<std::string, int>> AxesOf(const Layout& l, bool experts) {
  std::vector<std::pair<std::string, int>> axes;
  const bool names_cp = l.order.find("cp") != std::string::npos;
  const int edp = l.tp * l.cp * l.dp / l.ep / l.etp;
  if (experts && !l.eorder.empty()) {
    const std::map<std::string, int> degrees = {
        {"etp", l.etp}, {"ep", l.ep}, {"edp", edp}, {"pp", l.pp}};
    for (const std::string& token : Tokens(l.eorder)) axes.emplace_back(token, degrees.at(token));
    return axes;
  }
  for (const std::string& token : Tokens(l.order)) {
    if (token == "pp") axes.emplace_back("pp", l.pp);
    if (experts) {
      if (token == "tp") axes.insert(axes.end(), {{"etp", l.etp}, {"ep", l.ep}});
      if (token == "dp") axes.emplace_back("edp", edp);
    } else {
      if (token == "tp") axes.emplace_back("tp", l.tp);
      if (token == "cp" || (token == "tp" && !names_cp)) axes.emplace_back("cp", l.cp);
      if (token == "dp") axes.emplace_back("dp", l.dp);
    }
  }
  return axes;
}

// Row-major index and rank in the local order of one element; `padding` elements follow all.
struct LocalElement {
  std::vector<int64_t> order;
  int64_t index;
  friend auto operator<=>(const LocalElement&, const LocalElement&) = default;
};

// Whether a position has the element at `at`; sets what its place in local order depends on.
bool Owns(const Layout& layout, const Parameter& p, const Coords& at, const Coordinates& c,
          std::vector<int64_t>* order) {
  const int degree = InExpertGrid(layout, p) ? layout.etp : layout.tp;
  const Split& split = p.split;
  if (p.experts) {
    const int64_t expert = p.experts->axis >= 0 ? at[p.experts->axis] : p.experts->index;
    if (!OwnsExpert(layout, p, expert, c)) return false;
  }
  int64_t stored = 0;
  if (p.stored) {
    int64_t end = 0;
    for (const int64_t size : p.stored->sizes) {
      end += size;
      if (at[p.stored->axis] >= end) ++stored;
    }
  }
  *order = {stored, 0};
  if (split.axis < 0) return true;
  const int64_t extent = p.shape[split.axis];
  if (split.rule == Split::Rule::kRows) {
    int64_t row = 0;
    int64_t rows = 1;
    for (int axis = 0; axis < p.row_axes; ++axis) {
      row = row * p.shape[axis] + at[axis];
      rows *= p.shape[axis];
    }
    return Dealt(rows, degree)[static_cast<size_t>(row)] == c.split;
  }
  if (split.rule == Split::Rule::kGroups && degree > extent) {
    const auto per_group = static_cast<int>(degree / extent);
    if (at[split.axis] != c.split / per_group) return false;
    const int64_t own = p.shape[split.axis + 1] - split.shared;
    const int64_t entry = at[split.axis + 1];
    (*order)[1] = entry >= own ? 1 : 0;
    return entry >= own || Dealt(own, per_group)[static_cast<size_t>(entry)] == c.split % per_group;
  }
  return OwnersOfAxis(split, extent, degree)[static_cast<size_t>(at[split.axis])] == c.split;
}

}  // namespace

Coordinates Decode(const Layout& layout, bool experts, int position) {
  Coordinates c;
  if (experts && layout.ep == 1 && layout.etp == 1 && layout.eorder.empty()) {
    c.stage = Decode(layout, false, position).stage;
    return c;
  }
  for (const auto& [axis, degree] : AxesOf(layout, experts)) {
    if (axis == "pp") c.stage = position % degree;
    if (axis == "tp" || axis == "etp") c.split = position % degree;
    if (axis == "ep") c.expert = position % degree;
    position /= degree;
  }
  return c;
}

bool InExpertGrid(const Layout& layout, const Parameter& p) {
  return p.experts && (layout.ep > 1 || layout.etp != layout.tp);
}

bool OwnsExpert(const Layout& layout, const Parameter& p, int64_t expert, const Coordinates& c) {
  if (!InExpertGrid(layout, p)) return true;
  const int64_t count = p.experts->axis >= 0 ? p.shape[p.experts->axis] : p.experts->count;
  return Dealt(count, layout.ep)[static_cast<size_t>(expert)] == c.expert;
}

std::vector<int64_t> LocalElements(const Layout& layout, const Parameter& p, const Coordinates& c) {
  std::vector<LocalElement> local;
  int64_t others = 0;  // elements per index of axis 0
  if (ElemCount(p.shape) > 0) {
    Coords at = Coords::Filled(p.shape.dims(), 0);
    int64_t index = 0;
    do {
      std::vector<int64_t> order;
      if (Owns(layout, p, at, c, &order)) local.push_back({order, index});
      bool first = true;
      if (p.experts) {
        const int64_t expert = p.experts->axis >= 0 ? at[p.experts->axis] : p.experts->index;
        first = OwnsExpert(layout, p, expert, c);
      }
      if (first && p.shape.dims() > 0 && at[0] == 0) ++others;
      ++index;
    } while (NextIndex(p.shape, &at));
  }
  std::sort(local.begin(), local.end());
  std::vector<int64_t> indices;
  for (const LocalElement& element : local) indices.push_back(element.index);
  if (p.split.axis == 0 && p.split.rule == Split::Rule::kPadded) {
    const int degree = InExpertGrid(layout, p) ? layout.etp : layout.tp;
    indices.resize(static_cast<size_t>(ChunkOf(p.split, p.shape[0], degree) * others), -1);
  }
  return indices;
}

}  // namespace dynatrain::vps::testing
