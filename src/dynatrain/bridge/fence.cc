#include "dynatrain/bridge/fence.h"

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>
#include <c10/util/Flags.h>
#include <torch/csrc/distributed/c10d/exception.h>

C10_DECLARE_int(caffe2_log_level);

namespace dynatrain::bridge {
namespace {

// Gloo throws plain runtime errors, so its timeouts and lost peers are told by their words.
StatusCode CodeOfText(std::string_view text, StatusCode otherwise) {
  constexpr std::array kTimeout = {"imed out", "imeout"};
  constexpr std::array kLost = {"onnection closed", "onnection reset", "onnection refused",
                                "Broken pipe",      "likely closed",   "connect"};
  auto holds = [text](const char* word) { return text.find(word) != std::string_view::npos; };
  if (std::any_of(kTimeout.begin(), kTimeout.end(), holds)) return StatusCode::kDeadlineExceeded;
  if (std::any_of(kLost.begin(), kLost.end(), holds)) return StatusCode::kUnavailable;
  return otherwise;
}

// Gloo's texts read "[/path/pair.cc:553] Connection closed by peer [10.0.0.1]:999. This is
// typically ...".
Status MakeStatus(StatusCode code, std::string_view doing, std::string_view text) {
  text = text.substr(0, text.find('\n'));
  text = text.substr(0, text.find(". This is typically"));
  if (text.starts_with("[/") && text.find("] ") != std::string_view::npos) {
    text.remove_prefix(text.find("] ") + 2);
  }
  return {code, fmt::format("{}: {}", doing, text)};
}

}  // namespace

Status StatusOfException(std::string_view doing) {
  try {
    throw;
  } catch (const c10d::TimeoutError& e) {
    return MakeStatus(StatusCode::kDeadlineExceeded, doing, e.what_without_backtrace());
  } catch (const c10::DistError& e) {
    const std::string_view text = e.what_without_backtrace();
    return MakeStatus(CodeOfText(text, StatusCode::kUnavailable), doing, text);
  } catch (const c10::OutOfMemoryError& e) {
    return MakeStatus(StatusCode::kResourceExhausted, doing, e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    return MakeStatus(StatusCode::kInvalidArgument, doing, e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    return MakeStatus(StatusCode::kInvalidArgument, doing, e.what_without_backtrace());
  } catch (const c10::IndexError& e) {
    return MakeStatus(StatusCode::kInvalidArgument, doing, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    const std::string_view text = e.what_without_backtrace();
    return MakeStatus(CodeOfText(text, StatusCode::kInternal), doing, text);
  } catch (const std::bad_alloc& e) {
    return MakeStatus(StatusCode::kResourceExhausted, doing, e.what());
  } catch (const std::exception& e) {
    return MakeStatus(CodeOfText(e.what(), StatusCode::kInternal), doing, e.what());
  } catch (...) {
    return Internal("{}: an exception that is no std::exception", doing);
  }
}

void SilenceTorchLog() { FLAGS_caffe2_log_level = 3; }

}  // namespace dynatrain::bridge
