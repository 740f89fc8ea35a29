// JSON that others wrote: files, requests, messages. The one place where it is parsed. And the text
// of JSON of ours.
#ifndef DYNATRAIN_BASE_JSON_H_
#define DYNATRAIN_BASE_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "dynatrain/base/status.h"

namespace dynatrain {

// kInvalidArgument: the text is not JSON (the message tells the line and column), a number does not
// fit a double, or an object has a key twice (the message names it): which of the two values is
// meant, readers would answer differently. Any thread.
Result<nlohmann::json> ParseJson(std::string_view text);

// On one line if `indent` is -1. Never throws: names of files and requests may be any bytes, and what
// is not UTF-8 in them becomes U+FFFD. Any thread.
std::string DumpJson(const nlohmann::json& json, int indent = -1);

// Whether DumpJson keeps `text` as it is.
bool IsUtf8(std::string_view text);

// 64 bits as JSON carries them: 16 hexadecimal digits, for many readers keep 53 bits of a number.
std::string HexText(uint64_t value);
// The other way round. Throws nlohmann::json::exception, as its own accessors do, where `value` is
// not such a text.
uint64_t FromHex(const nlohmann::json& value);

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_JSON_H_
