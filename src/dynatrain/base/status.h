// Errors as values. Every fallible call of the core returns a Status or a Result<T>; exceptions
// stop at the bridge to torch. A message names what is wrong and what would be right, in one line.
#ifndef DYNATRAIN_BASE_STATUS_H_
#define DYNATRAIN_BASE_STATUS_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "dynatrain/base/check.h"

namespace dynatrain {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // the input is wrong, whatever the state of the job
  kFailedPrecondition,  // the input is fine, the job is not in a state to take it
  kNotFound,
  kDeadlineExceeded,  // a wait ended without what it waited for
  kUnavailable,       // a peer, a store or a file cannot be reached
  kAborted,           // given up by decision of somebody else (a rollback, a cancelled operation)
  kDataLoss,          // bytes are not what they must be
  kResourceExhausted,
  kInternal,  // our own bug, found before it could do harm
};

std::string_view StatusCodeName(StatusCode code);

// Success, or a code with a message. Cheap to move; thread-compatible.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    DT_CHECK(code != StatusCode::kOk);
  }

  static Status Ok() { return {}; }
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "invalid argument: tp=3 does not divide 8 heads", or "ok".
  std::string ToString() const;

  // The same error with `context` and ": " in front of its message; Ok stays Ok.
  Status Within(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A T, or the Status that says why there is none. Reading the value of a failed result aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit
  Result(Status status) : status_(std::move(status)) { DT_CHECK(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  const T& value() const& {
    DT_CHECK_MSG(ok(), status_.ToString());
    return *value_;
  }
  T& value() & {
    DT_CHECK_MSG(ok(), status_.ToString());
    return *value_;
  }
  T&& value() && {
    DT_CHECK_MSG(ok(), status_.ToString());
    return std::move(*value_);
  }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

#define DYNATRAIN_DEFINE_ERROR(Name, code)                           \
  template <class... Args>                                           \
  Status Name(fmt::format_string<Args...> format, Args&&... args) {  \
    return {code, fmt::format(format, std::forward<Args>(args)...)}; \
  }
DYNATRAIN_DEFINE_ERROR(InvalidArgument, StatusCode::kInvalidArgument)
DYNATRAIN_DEFINE_ERROR(FailedPrecondition, StatusCode::kFailedPrecondition)
DYNATRAIN_DEFINE_ERROR(NotFound, StatusCode::kNotFound)
DYNATRAIN_DEFINE_ERROR(DeadlineExceeded, StatusCode::kDeadlineExceeded)
DYNATRAIN_DEFINE_ERROR(Unavailable, StatusCode::kUnavailable)
DYNATRAIN_DEFINE_ERROR(Aborted, StatusCode::kAborted)
DYNATRAIN_DEFINE_ERROR(DataLoss, StatusCode::kDataLoss)
DYNATRAIN_DEFINE_ERROR(ResourceExhausted, StatusCode::kResourceExhausted)
DYNATRAIN_DEFINE_ERROR(Internal, StatusCode::kInternal)
#undef DYNATRAIN_DEFINE_ERROR

#define DT_CONCAT_INNER_(a, b) a##b
#define DT_CONCAT_(a, b) DT_CONCAT_INNER_(a, b)

// Returns the Status of `expr` from the enclosing function unless it is Ok.
#define DT_RETURN_IF_ERROR(expr)                                     \
  do {                                                               \
    if (::dynatrain::Status dt_status_ = (expr); !dt_status_.ok()) { \
      return dt_status_;                                             \
    }                                                                \
  } while (false)

// DT_ASSIGN_OR_RETURN(auto layout, ParseLayout(spec)); — returns the error, else binds the value.
#define DT_ASSIGN_OR_RETURN(lhs, expr) \
  DT_ASSIGN_OR_RETURN_(DT_CONCAT_(dt_result_, __LINE__), lhs, expr)
#define DT_ASSIGN_OR_RETURN_(result, lhs, expr)        \
  auto result = (expr);                                \
  if (!result.ok()) return std::move(result).status(); \
  lhs = *std::move(result)

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_STATUS_H_
