#include "text/tokenizers/characters/byte_level.h"

#include "text/tokenizers/characters/unicode.h"

namespace perigee::text {
namespace {

std::array<char32_t, 256> make_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
                        byte >= 0xae;
    characters[byte] = itself ? byte : next++;
  }
  return characters;
}

// The UTF-8 of each byte's character.
std::array<std::string, 256> make_texts() {
  std::array<std::string, 256> texts;
  for (size_t byte = 0; byte < 256; ++byte) append(texts[byte], byte_characters()[byte]);
  return texts;
}

std::array<int16_t, 324> make_bytes() {
  std::array<int16_t, 324> bytes{};
  bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) {
    bytes[byte_characters()[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}

}  // namespace

const std::array<char32_t, 256>& byte_characters() {
  static const auto characters = make_characters();
  return characters;
}

int byte_of(char32_t c) {
  static const auto bytes = make_bytes();
  return c < bytes.size() ? bytes[c] : -1;
}

std::string to_byte_level(std::string_view text) {
  static const auto texts = make_texts();
  std::string result;
  result.reserve(2 * text.size());
  for (const char c : text) result += texts[static_cast<unsigned char>(c)];
  return result;
}

void to_byte_level(char32_t& a, char32_t& b) {
  std::string bytes;
  if (a != kUnknown) {
    append(bytes, a);
    a = byte_characters()[static_cast<unsigned char>(bytes.back())];
  }
  bytes.clear();
  append(bytes, b);
  b = byte_characters()[static_cast<unsigned char>(bytes.front())];
}

}  // namespace perigee::text
