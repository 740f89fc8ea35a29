#include <gtest/gtest.h>

#include "dynatrain/planner/testing_routes.h"

namespace dynatrain::planner {
namespace {

TEST(PlanRouteSlow, TwentyThousandTriples) { testing::CheckTriples(1000, 20000); }

}  // namespace
}  // namespace dynatrain::planner
