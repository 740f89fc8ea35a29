// Where exceptions of torch, c10d and Gloo end: everything they throw becomes a Status here.
#ifndef DYNATRAIN_BRIDGE_FENCE_H_
#define DYNATRAIN_BRIDGE_FENCE_H_

#include <string_view>
#include <type_traits>
#include <utility>

#include "dynatrain/base/status.h"

namespace dynatrain::bridge {

// The Status of the exception being handled: call it inside a catch block only. Timeouts are
// kDeadlineExceeded, lost peers and stores kUnavailable, exhausted memory kResourceExhausted,
// rejected arguments kInvalidArgument, the rest kInternal. The message starts with `doing` and
// holds the first line of the exception's text, without its stack.
Status StatusOfException(std::string_view doing);

// Runs `f` and returns its Status, Ok if it returns void, or the Status of what it throws.
// `doing` names the operation: "connect to the store at 10.0.0.1:29500".
template <class F>
Status Fence(std::string_view doing, F&& f) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      std::forward<F>(f)();
      return {};
    } else {
      return std::forward<F>(f)();
    }
  } catch (...) {
    return StatusOfException(doing);
  }
}

template <class T>
struct FencedResult {
  using type = Result<T>;
};
template <class T>
struct FencedResult<Result<T>> {
  using type = Result<T>;
};

// Runs `f`, which returns a T or a Result<T>, and returns that or the Status of what it throws.
template <class F>
auto FenceResult(std::string_view doing, F&& f) ->
    typename FencedResult<std::invoke_result_t<F>>::type {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    return StatusOfException(doing);
  }
}

// Stops torch from writing its own log lines below fatal to standard error in this process: what
// they tell comes as a Status. Call it once, before other threads start.
void SilenceTorchLog();

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_FENCE_H_
