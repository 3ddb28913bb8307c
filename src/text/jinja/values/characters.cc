#include "text/jinja/values/characters.h"

#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text/utf8.h"
#include "text/jinja/values/value.h"

namespace perigee::text::jinja {
namespace {

// The system's tables of Unicode, which do not depend on the user's locale.
locale_t unicode() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (!locale) refuse("letters beyond ASCII need the system's locale C.UTF-8, which is missing");
  return locale;
}

struct Special {
  char32_t letter;
  std::string_view upper;
  std::string_view capital;
};
constexpr std::array kSpecial{Special{0xDF, "SS", "Ss"},     Special{0x149, "\u02BCN", "\u02BCN"},
                              Special{0xFB00, "FF", "Ff"},   Special{0xFB01, "FI", "Fi"},
                              Special{0xFB02, "FL", "Fl"},   Special{0xFB03, "FFI", "Ffi"},
                              Special{0xFB04, "FFL", "Ffl"}, Special{0xFB05, "ST", "St"},
                              Special{0xFB06, "ST", "St"}};

void append_upper(std::string& text, char32_t c, bool capital = false) {
  if (c < 0x80) {
    text += char(c >= 'a' && c <= 'z' ? c - 32 : c);
    return;
  }
  const auto special = std::ranges::find(kSpecial, c, &Special::letter);
  if (special != kSpecial.end()) {
    text += capital ? special->capital : special->upper;
  } else {
    append(text, towupper_l(c, unicode()));
  }
}

void append_lower(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += char(c >= 'A' && c <= 'Z' ? c + 32 : c);
  } else if (c == 0x130) {
    text += "i\u0307";
  } else {
    append(text, towlower_l(c, unicode()));
  }
}

// A capital sigma at the end of a word becomes the final small one.
bool ends_word(std::string_view text, size_t begin, size_t end) {
  size_t at = end;
  if (end < text.size() && is_alphabetic(next_character(text, at))) return false;
  if (begin == 0) return false;
  size_t before = begin - 1;
  while (before > 0 && (static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) --before;
  return is_alphabetic(next_character(text, before));
}

bool strips(char32_t c, const std::string* chars) {
  if (!chars) return is_space(c);
  for (size_t at = 0; at < chars->size();) {
    if (next_character(*chars, at) == c) return true;
  }
  return false;
}

}  // namespace

char32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned first = byte(0);
  const size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t c = length == 1 ? first : first & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) c = c << 6 | (byte(i) & 0x3F);
  at += length;
  return c;
}

void append(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += char(c);
    return;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  text += char((more == 1 ? 0xC0 : more == 2 ? 0xE0 : 0xF0) | c >> (6 * more));
  for (int i = more - 1; i >= 0; --i) text += char(0x80 | (c >> (6 * i) & 0x3F));
}

size_t length_of(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

size_t byte_of(std::string_view text, size_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((text[at] & 0xC0) != 0x80 && index-- == 0) return at;
  }
  return at;
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return text.npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found ? static_cast<const char*>(found) - text.data() : text.npos;
}

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto front = utf8_front(text);
    if (!front.whole) return false;
    text.remove_prefix(front.bytes);
  }
  return true;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  const bool format = c == 0xAD || (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
                      (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB);
  const bool private_use = (c >= 0xE000 && c <= 0xF8FF) || c >= 0xE0000;
  return c > 0xA0 && !is_space(c) && !format && !private_use && iswprint_l(c, unicode());
}

bool is_upper(char32_t c) { return c < 0x80 ? c >= 'A' && c <= 'Z' : iswupper_l(c, unicode()); }
bool is_lower(char32_t c) { return c < 0x80 ? c >= 'a' && c <= 'z' : iswlower_l(c, unicode()); }
bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_alphabetic(char32_t c) {
  if (c < 0x80) return is_upper(c) || is_lower(c);
  return iswalpha_l(c, unicode());
}

std::string upper(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_upper(out, next_character(text, at));
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto begin = at;
    const auto c = next_character(text, at);
    if (c == 0x3A3 && ends_word(text, begin, at)) {
      append(out, 0x3C2);
    } else {
      append_lower(out, c);
    }
  }
  return out;
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return "";
  size_t at = 0;
  std::string out;
  append_upper(out, next_character(text, at), true);
  const auto all_lower = lower(text);
  return out + all_lower.substr(byte_of(all_lower, 1));
}

std::string_view strip_left(std::string_view text, const std::string* chars) {
  for (size_t at = 0; !text.empty(); at = 0) {
    if (!strips(next_character(text, at), chars)) break;
    text.remove_prefix(at);
  }
  return text;
}

std::string_view strip_right(std::string_view text, const std::string* chars) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while ((text[begin] & 0xC0) == 0x80) --begin;
    size_t at = begin;
    if (!strips(next_character(text, at), chars)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

}  // namespace perigee::text::jinja
