#include "dynatrain/elastic/groups.h"

#include <algorithm>
#include <string_view>

namespace dynatrain::elastic {
namespace {

using vps::Layout;
using vps::Role;

int32_t Degree(const Layout& layout, std::string_view axis) {
  return axis == "tp" ? layout.tp : axis == "dp" ? layout.dp : layout.pp;
}

void SetCoordinate(Role* role, std::string_view axis, int32_t value) {
  (axis == "tp" ? role->tp : axis == "dp" ? role->dp : role->pp) = value;
}

int32_t Coordinate(const Role& role, std::string_view axis) {
  return axis == "tp" ? role.tp : axis == "dp" ? role.dp : role.pp;
}

// One group for each line of the grid along `axis`, lines by the position of their first rank.
void AppendAxis(const Layout& layout, std::string_view axis, std::vector<GroupSpec>* groups) {
  const int32_t degree = Degree(layout, axis);
  if (degree == 1) return;
  int32_t line = 0;
  for (int32_t position = 0; position < layout.world_size(); ++position) {
    Role role = layout.RoleAt(position);
    if (Coordinate(role, axis) != 0) continue;
    GroupSpec spec{std::string(axis), fmt::format("{}.{}", axis, line++), {}};
    for (int32_t i = 0; i < degree; ++i) {
      SetCoordinate(&role, axis, i);
      spec.ranks.push_back(layout.RankAt(layout.PositionOf(role)));
    }
    groups->push_back(std::move(spec));
  }
}

void AppendEmbedding(const Layout& layout, std::vector<GroupSpec>* groups) {
  if (layout.pp == 1) return;
  std::vector<GroupSpec> lines;
  AppendAxis(layout, "pp", &lines);
  int32_t line = 0;
  for (const GroupSpec& pp : lines) {
    groups->push_back(
        {"embedding", fmt::format("embedding.{}", line++), {pp.ranks.front(), pp.ranks.back()}});
  }
}

}  // namespace

std::vector<GroupSpec> GroupsOf(const Layout& layout) {
  std::vector<GroupSpec> groups{{"world", "world.0", layout.Ranks()}};
  for (const std::string_view axis : {"tp", "dp", "pp"}) AppendAxis(layout, axis, &groups);
  AppendEmbedding(layout, &groups);
  return groups;
}

std::vector<GroupSpec> GroupsOfRank(const Layout& layout, RankId rank) {
  std::vector<GroupSpec> groups = GroupsOf(layout);
  std::erase_if(groups, [rank](const GroupSpec& spec) {
    return std::ranges::find(spec.ranks, rank) == spec.ranks.end();
  });
  return groups;
}

}  // namespace dynatrain::elastic
