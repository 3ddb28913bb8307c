// Text that comes in pieces, made valid UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

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
