// Operators of expressions, with Python's meaning. All throw Refusal for values of other types.
#pragma once

#include <string_view>

#include "text/jinja/run.h"
#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

// Returns a + b, a - b, a * b, a / b, a // b, a % b or a ** b. Whole numbers have 64 bits.
Value arithmetic(Run& run, std::string_view symbol, const Value& a, const Value& b);
Value with_sign(std::string_view symbol, const Value& value);

bool equal(Run& run, const Value& a, const Value& b);
bool less(Run& run, const Value& a, const Value& b);
bool less_or_equal(Run& run, const Value& a, const Value& b);
// Returns whether `item` is in a text, a list or the keys of a mapping.
bool contains(Run& run, const Value& whole, const Value& item);
// Returns the value of a key, or nullptr.
const Value* find_key(Run& run, const Dict& dict, const Value& key);

}  // namespace perigee::text::jinja
