// Bytes that may be no valid UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace perigee {

// The bytes at the front of a text that begin a character of UTF-8: no overlong form, no surrogate,
// at most U+10FFFF.
struct Utf8Front {
  size_t bytes = 0;    // 0: the first byte begins no character
  bool whole = false;  // they are a complete character
};
Utf8Front utf8_front(std::string_view text);

// Replaces each byte that is of no character of UTF-8 by U+FFFD. A character that a piece begins is
// given when a later piece completes it.
class Utf8Stream {
 public:
  // Returns the complete characters up to the end of `piece`.
  std::string add(std::string_view piece);
  // Returns the rest: U+FFFD for each byte of a character that is not complete.
  std::string end();

 private:
  std::string open_;  // the bytes of a character that may become complete
};

}  // namespace perigee
