// Text of others in messages of ours.
#ifndef DYNATRAIN_BASE_TEXT_H_
#define DYNATRAIN_BASE_TEXT_H_

#include <string>
#include <string_view>

namespace dynatrain {

// `text`, or its beginning and end with "..." between them if it has more than `most` bytes (at
// least 5). May cut inside a UTF-8 character.
inline std::string Shortened(std::string_view text, size_t most = 100) {
  if (text.size() <= most) return std::string(text);
  const size_t tail = (most - 3) / 2, head = most - 3 - tail;
  return std::string(text.substr(0, head)) + "..." + std::string(text.substr(text.size() - tail));
}

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_TEXT_H_
