// The executable form of the contract in transport.h: cases that every implementation passes.
//
//   class GlooConformance : public testing::TestWithParam<ConformanceCase> {};
//   TEST_P(GlooConformance, Holds) { EXPECT_EQ(GetParam().run(MakeFixture()).ToString(), "ok"); }
//   INSTANTIATE_TEST_SUITE_P(Gloo, GlooConformance, testing::ValuesIn(ConformanceCases()),
//   CaseName);
#ifndef DYNATRAIN_TRANSPORT_CONFORMANCE_H_
#define DYNATRAIN_TRANSPORT_CONFORMANCE_H_

#include <functional>
#include <string>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/transport/transport.h"

namespace dynatrain::transport {

// What one rank does with its transport. An error ends the rank; its transport is then destroyed at
// once.
using RankBody = std::function<Status(Transport& transport)>;

struct ConformanceFixture {
  // Runs `body` on ranks 0 .. n-1, each on a thread or process of its own with a fresh transport
  // over all of them, and returns what the bodies returned, by rank. The transport of a rank that
  // is in `leavers` or returned an error is destroyed as soon as its body returned; the others only
  // after every body returned.
  std::function<std::vector<Status>(int n, const std::vector<RankId>& leavers,
                                    const RankBody& body)>
      run;
  Duration timeout = std::chrono::seconds(20);              // of waits that must succeed
  Duration short_timeout = std::chrono::milliseconds(300);  // of waits that must not
};

struct ConformanceCase {
  std::string name;                                              // an identifier: "LengthMismatch"
  std::function<Status(const ConformanceFixture& fixture)> run;  // Ok, or what was not as promised
};

std::vector<ConformanceCase> ConformanceCases();

// The name of a test that runs a case; and how gtest prints one.
template <class ParamInfo>
std::string CaseName(const ParamInfo& info) {
  return info.param.name;
}
inline void PrintTo(const ConformanceCase& c, std::ostream* os) { *os << c.name; }

}  // namespace dynatrain::transport

#endif  // DYNATRAIN_TRANSPORT_CONFORMANCE_H_
