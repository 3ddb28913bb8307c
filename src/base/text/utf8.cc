#include "base/text/utf8.h"

#include <algorithm>

namespace perigee {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

unsigned byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

// Returns the bytes of the character that begins with `first`, 0 where none does.
size_t length_of(unsigned first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return 2;
  if (first >= 0xE0 && first < 0xF0) return 3;
  if (first >= 0xF0 && first < 0xF5) return 4;
  return 0;
}

// Returns whether `second` may follow `first`: no overlong form, no surrogate, at most U+10FFFF.
bool follows(unsigned first, unsigned second) {
  const unsigned lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= lowest && second <= highest;
}

// Returns how many bytes at the front of `text` are of its first character, 0 where they are of
// none. They are fewer than its length where the text ends within it.
size_t valid_bytes(std::string_view text) {
  const auto first = byte_at(text, 0);
  const auto length = length_of(first);
  for (size_t i = 1; i < length && i < text.size(); ++i) {
    const auto byte = byte_at(text, i);
    if (i == 1 ? !follows(first, byte) : (byte & 0xC0) != 0x80) return 0;
  }
  return std::min(length, text.size());
}

}  // namespace

std::string Utf8Stream::add(std::string_view piece) {
  open_ += piece;
  std::string complete;
  size_t at = 0;
  while (at < open_.size()) {
    const auto rest = std::string_view(open_).substr(at);
    const auto valid = valid_bytes(rest);
    if (valid == 0) {
      complete += kReplacement;
      ++at;
      continue;
    }
    if (valid < length_of(byte_at(rest, 0))) break;
    complete += rest.substr(0, valid);
    at += valid;
  }
  open_.erase(0, at);
  return complete;
}

std::string Utf8Stream::end() {
  std::string text;
  for (size_t i = 0; i < open_.size(); ++i) text += kReplacement;
  open_.clear();
  return text;
}

}  // namespace perigee
