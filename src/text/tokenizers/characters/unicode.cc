#include "text/tokenizers/characters/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/text/utf8.h"

namespace perigee::text {
namespace {

int category(char32_t code) {
  return code < kUnknown ? utf8proc_category(static_cast<utf8proc_int32_t>(code)) : -1;
}

}  // namespace

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> char32_t {
    return static_cast<unsigned char>(text[at + i]) & 0x3fU;
  };
  const unsigned first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1fU) << 6 | byte(1), 2};
  if (first < 0xf0) return {(first & 0x0fU) << 12 | byte(1) << 6 | byte(2), 3};
  return {(first & 0x07U) << 18 | byte(1) << 12 | byte(2) << 6 | byte(3), 4};
}

Character character_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0U) == 0x80) --begin;
  return character_at(text, begin);
}

void append(std::string& text, char32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

size_t valid_length(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t block = 0;
    if (at + 8 <= text.size()) {
      std::memcpy(&block, text.data() + at, 8);
      if ((block & 0x8080808080808080U) == 0) {
        at += 8;
        continue;
      }
    }
    const auto front = utf8_front(text.substr(at));
    if (!front.whole) return at;
    at += front.bytes;
  }
  return at;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const auto good = valid_length(bytes.substr(at));
    text.append(bytes.substr(at, good));
    at += good;
    if (at == bytes.size()) break;
    text += "\xef\xbf\xbd";
    at += std::max<size_t>(utf8_front(bytes.substr(at)).bytes, 1);
  }
  return text;
}

bool is_ascii(std::string_view text) {
  unsigned char all = 0;
  for (const char c : text) all |= static_cast<unsigned char>(c);
  return all < 0x80;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_word(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // joiners, and letters in circles and squares
      return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
             (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
             (c >= 0x1f170 && c <= 0x1f189);
  }
}

bool is_numeric(char32_t c) {
  const int found = category(c);
  return found >= UTF8PROC_CATEGORY_ND && found <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const int found = category(c);
  return found >= UTF8PROC_CATEGORY_PC && found <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  const int found = category(c);
  return found >= UTF8PROC_CATEGORY_MN && found <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

bool is_other(char32_t c) {
  const int found = category(c);
  return found == UTF8PROC_CATEGORY_CC || found == UTF8PROC_CATEGORY_CF ||
         found == UTF8PROC_CATEGORY_CO;
}

void append_lower(std::string& text, char32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code);
  } else if (code == 0x130) {  // the one character whose lower case is two
    text += "i\xcc\x87";
  } else {
    append(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  }
}

std::string normalized(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  options |= composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* bytes = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &bytes,
                                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  if (length < 0) throw std::bad_alloc();  // the text is valid
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(length)};
}

bool is_inert(char32_t code, NormalForm form) {
  if (code < 0x80) return true;
  if (code >= kUnknown || is_mark(code)) return false;
  const bool hangul = (code >= 0x1100 && code <= 0x11ff) || (code >= 0xa960 && code <= 0xa97f) ||
                      (code >= 0xac00 && code <= 0xd7ff);
  if (hangul) return false;
  const auto* properties = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
  if (properties->combining_class != 0) return false;
  std::string text;
  append(text, code);
  return normalized(text, form) == text;
}

size_t grapheme_end(std::string_view text, size_t at) {
  auto now = character_at(text, at);
  at += now.length;
  utf8proc_int32_t state = 0;
  while (at < text.size()) {
    const auto next = character_at(text, at);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(now.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state)) {
      break;
    }
    at += next.length;
    now = next;
  }
  return at;
}

}  // namespace perigee::text
