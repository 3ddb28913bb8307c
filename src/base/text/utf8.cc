#include "base/text/utf8.h"

namespace perigee {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

unsigned byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

// Returns the bytes of the character that begins with `first`, 0 where none does.
size_t length_of(unsigned first) {
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

// Returns whether `second` may follow `first`.
bool follows(unsigned first, unsigned second) {
  const unsigned lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= lowest && second <= highest;
}

}  // namespace

Utf8Front utf8_front(std::string_view text) {
  if (text.empty()) return {};
  const auto first = byte_at(text, 0);
  const auto length = length_of(first);
  if (length == 0) return {};
  size_t at = 1;
  while (at < length && at < text.size()) {
    const auto byte = byte_at(text, at);
    if (at == 1 ? !follows(first, byte) : (byte & 0xC0) != 0x80) break;
    ++at;
  }
  return {at, at == length};
}

std::string Utf8Stream::add(std::string_view piece) {
  open_ += piece;
  std::string complete;
  size_t at = 0;
  while (at < open_.size()) {
    const auto rest = std::string_view(open_).substr(at);
    const auto front = utf8_front(rest);
    if (front.whole) {
      complete += rest.substr(0, front.bytes);
      at += front.bytes;
      continue;
    }
    if (front.bytes == rest.size()) break;  // a later piece may complete it
    complete += kReplacement;
    ++at;
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
