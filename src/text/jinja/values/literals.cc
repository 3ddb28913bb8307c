#include "text/jinja/values/literals.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja/values/characters.h"

namespace perigee::text::jinja {
namespace {

bool digit_of(char c, int base) {
  const char l = char(c | 32);
  return (c >= '0' && c <= '9' && c - '0' < base) || (l >= 'a' && l <= 'z' && l - 'a' + 10 < base);
}

// Returns the end of digits that begin at `at`, with single "_" between them.
size_t digits_end(std::string_view text, size_t at, int base = 10) {
  while (at < text.size() && digit_of(text[at], base)) {
    ++at;
    if (at + 1 < text.size() && text[at] == '_' && digit_of(text[at + 1], base)) ++at;
  }
  return at;
}

std::string without_underscores(std::string_view text) {
  std::string out(text);
  std::erase(out, '_');
  return out;
}

int base_of_prefix(std::string_view text) {
  if (text.size() < 2 || text[0] != '0') return 10;
  const char l = char(text[1] | 32);
  return l == 'x' ? 16 : l == 'o' ? 8 : l == 'b' ? 2 : 10;
}

// Reads up to `most` digits after an escape's letter.
char32_t code(std::string_view text, size_t& at, size_t most, int base, size_t least) {
  char32_t c = 0;
  size_t count = 0;
  for (; count < most && at < text.size() && digit_of(text[at], base); ++count, ++at) {
    const char l = char(text[at] | 32);
    c = c * base + (l >= 'a' ? l - 'a' + 10 : text[at] - '0');
  }
  if (count < least) refuse("an escape in a text must have {} digits, but has {}", least, count);
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) {
    refuse("an escape in a text must be a character, but is U+{:04X}", uint32_t(c));
  }
  return c;
}

}  // namespace

size_t number_size(std::string_view text, bool real) {
  const int base = base_of_prefix(text);
  if (base != 10) {
    const size_t begin = text.size() > 2 && text[2] == '_' ? 3 : 2;
    const auto end = digits_end(text, begin, base);
    if (end > begin) return end;
  }
  const auto whole = digits_end(text, 0);
  if (!real) return whole;
  auto end = whole;
  if (end + 1 < text.size() && text[end] == '.' && digit_of(text[end + 1], 10)) {
    end = digits_end(text, end + 1);
  }
  if (end < text.size() && (text[end] | 32) == 'e') {
    size_t exponent = end + 1;
    if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
    const auto digits = digits_end(text, exponent);
    if (digits > exponent) end = digits;
  }
  return end;
}

Value number_value(std::string_view digits) {
  const int base = base_of_prefix(digits);
  if (base == 10 && digits.find_first_of(".eE") != digits.npos) return *parse_real(digits);
  const auto whole = parse_whole(digits, base);
  if (!whole) refuse("whole numbers must be below 2^63, but one is {}", digits);
  return *whole;
}

std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '\\' || at + 1 >= text.size()) {
      out += text[at++];
      continue;
    }
    const char c = text[at + 1];
    at += 2;
    constexpr std::string_view kNames = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
    if (const auto name = kNames.find(c); name != kNames.npos) {
      out += kValues[name];
    } else if (c == 'x') {
      append(out, code(text, at, 2, 16, 2));
    } else if (c == 'u') {
      append(out, code(text, at, 4, 16, 4));
    } else if (c == 'U') {
      append(out, code(text, at, 8, 16, 8));
    } else if (c >= '0' && c <= '7') {
      append(out, code(text, --at, 3, 8, 1));
    } else if (c == 'N') {
      refuse("escapes of characters by name (\\N) are not supported");
    } else if (c != '\n') {
      out += '\\';
      out += c;
    }
  }
  return out;
}

std::optional<int64_t> parse_whole(std::string_view text, int base) {
  text = strip_right(strip_left(text));
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if ((base == base_of_prefix(text) && base != 10) || (base == 0 && base_of_prefix(text) != 10)) {
    base = base_of_prefix(text);
    text.remove_prefix(text.size() > 2 && text[2] == '_' ? 3 : 2);
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || text.empty() || digits_end(text, 0, base) != text.size()) return {};
  const auto digits = (negative ? "-" : "") + without_underscores(text);
  int64_t value = 0;
  const auto end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, base);
  if (result.ec == std::errc::result_out_of_range) {
    refuse("whole numbers must be below 2^63, but one is of {} digits", digits.size());
  }
  return result.ec == std::errc() && result.ptr == end ? std::optional(value) : std::nullopt;
}

std::optional<double> parse_real(std::string_view text) {
  text = strip_right(strip_left(text));
  auto digits = without_underscores(text);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.empty() || digits[0] == '-' || text.ends_with('_')) return {};
  double value = 0;
  const auto end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value);
  if (result.ptr != end || result.ec == std::errc::invalid_argument || digits.ends_with(')')) {
    return {};
  }
  if (result.ec == std::errc::result_out_of_range) value = std::strtod(digits.c_str(), nullptr);
  return negative ? -value : value;
}

std::string real_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, number,
                                    std::chars_format::scientific);
  const std::string_view text(buffer, result.ptr - buffer);
  const auto e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);  // as Python: 1e+16, 1e-05
  std::string digits(text.substr(0, e));
  const std::string sign = digits[0] == '-' ? "-" : "";
  std::erase_if(digits, [](char c) { return c == '-' || c == '.'; });
  if (exponent < 0) return sign + "0." + std::string(-exponent - 1, '0') + digits;
  if (digits.size() <= size_t(exponent) + 1) {
    return sign + digits + std::string(exponent + 1 - digits.size(), '0') + ".0";
  }
  return sign + digits.substr(0, exponent + 1) + "." + digits.substr(exponent + 1);
}

}  // namespace perigee::text::jinja
