// Attributes, items and slices of values, as in Jinja's immutable sandbox.
#pragma once

#include <string>

#include "text/jinja/run.h"
#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

// Return value.name and value[key]; undefined where there is none. Throw Refusal where the value is
// not defined itself.
Value attribute(Run& run, const Value& value, const std::string& name);
Value item(Run& run, const Value& value, const Value& key);

// The parts of value[begin:end:step], nullptr where one is not given.
struct SliceParts {
  const Value* begin = nullptr;
  const Value* end = nullptr;
  const Value* step = nullptr;
};
Value slice(Run& run, const Value& value, const SliceParts& parts);

// A method of texts, lists or mappings.
struct Method {
  std::string_view name;
  Value (*call)(Run& run, const Value& self, const Arguments& arguments);
};

// Returns the method, or nullptr. methods.cc and methods_text.cc have the lists.
const Method* find_method(const Value& self, std::string_view name);
const Method* find_text_method(std::string_view name);

// Returns the parts of a text between separators, at most `most` cuts; negative: any number.
// Throws Refusal for an empty separator.
Values split_text(Run& run, const std::string& text, const std::string* separator, int64_t most);
Values lines_of(Run& run, const std::string& text);
// Returns the text with `old` replaced, at most `most` times; negative: always.
Value replaced(Run& run, const std::string& text, const std::string& old, const std::string& by,
               int64_t most);

// Return an argument's value, or the standard where it is not given or none.
const std::string& text_argument(const Value* given, std::string_view callee);
int64_t whole_argument(const Value* given, std::string_view callee, int64_t standard);

}  // namespace perigee::text::jinja
