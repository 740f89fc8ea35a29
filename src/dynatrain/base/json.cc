#include "dynatrain/base/json.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dynatrain/base/text.h"

namespace dynatrain {
namespace {

using Json = nlohmann::json;

// Hears of each key while a text is parsed and remembers the first that its object has twice.
class KeyWatch {
 public:
  void Hear(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      keys_of_open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys_of_open_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto [key, first] = keys_of_open_.back().insert(parsed.get<std::string>());
      if (!first && !twice_) twice_ = *key;
    }
  }
  const std::optional<std::string>& twice() const { return twice_; }

 private:
  std::vector<std::set<std::string>> keys_of_open_;  // objects, outermost first
  std::optional<std::string> twice_;
};

// Without the "[json.exception.parse_error.101] " in front.
std::string PlainMessage(const Json::exception& error) {
  constexpr size_t kMost = 300;
  std::string_view text = error.what();
  if (text.starts_with('[')) text.remove_prefix(std::min(text.find(' '), text.size() - 1) + 1);
  return Shortened(text, kMost);
}

}  // namespace

Result<Json> ParseJson(std::string_view text) {
  KeyWatch watch;
  const auto hear = [&watch](int, Json::parse_event_t event, Json& parsed) {
    watch.Hear(event, parsed);
    return true;
  };
  try {
    Json json = Json::parse(text, hear);
    if (watch.twice()) {
      return InvalidArgument("key '{}' is given twice; right is once", Shortened(*watch.twice()));
    }
    return json;
  } catch (const Json::exception& error) {
    return InvalidArgument("not JSON: {}", PlainMessage(error));
  }
}

std::string DumpJson(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string HexText(uint64_t value) { return fmt::format("{:016x}", value); }

uint64_t FromHex(const Json& value) {
  const auto text = value.get<std::string>();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Json::other_error::create(501, "\"" + text + "\" is not a hexadecimal number", &value);
  }
  return number;
}

bool IsUtf8(std::string_view text) {
  try {
    static_cast<void>(Json(text).dump());
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

}  // namespace dynatrain
