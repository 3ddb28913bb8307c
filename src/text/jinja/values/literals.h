// Texts and numbers in a template's tags, and numbers as texts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

// Returns the size of the number at the front of a text that begins with a digit. `real`: it may
// have a fraction or an exponent.
size_t number_size(std::string_view text, bool real);
// Returns its value. Throws Refusal for a whole number beyond 63 bits.
Value number_value(std::string_view digits);

// Returns a literal without its quotes, with its escapes (\n, \x41, \u00e9, ...) replaced.
std::string unescaped(std::string_view text);

// Return the number in a text as of Python's int(text, base) and float(text), if there is one.
std::optional<int64_t> parse_whole(std::string_view text, int base = 10);
std::optional<double> parse_real(std::string_view text);

// Returns a number as Python's repr(): the shortest one that is read as the same.
std::string real_text(double number);

}  // namespace perigee::text::jinja
