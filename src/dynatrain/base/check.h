// Aborts on our own bugs. Never on input: input errors are a Status.
#ifndef DYNATRAIN_BASE_CHECK_H_
#define DYNATRAIN_BASE_CHECK_H_

#include <string>
#include <string_view>

namespace dynatrain {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

}  // namespace dynatrain

#define DT_CHECK(condition)                                                         \
  do {                                                                              \
    if (!(condition)) ::dynatrain::CheckFailed(__FILE__, __LINE__, #condition, ""); \
  } while (false)

#define DT_CHECK_MSG(condition, message)                                                   \
  do {                                                                                     \
    if (!(condition)) ::dynatrain::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

#endif  // DYNATRAIN_BASE_CHECK_H_
