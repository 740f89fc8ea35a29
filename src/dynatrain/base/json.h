// JSON that others wrote: files, requests, messages. The one place where it is parsed.
#ifndef DYNATRAIN_BASE_JSON_H_
#define DYNATRAIN_BASE_JSON_H_

#include <string_view>

#include <nlohmann/json.hpp>

#include "dynatrain/base/status.h"

namespace dynatrain {

// kInvalidArgument: the text is not JSON (the message tells the line and column), a number does not
// fit a double, or an object has a key twice (the message names it): which of the two values is
// meant, readers would answer differently. Any thread.
Result<nlohmann::json> ParseJson(std::string_view text);

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_JSON_H_
