// Filters: "value | name(arguments)".
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "text/jinja/run.h"
#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

struct Filter {
  std::string_view name;
  Value (*apply)(Run& run, const Value& value, const Arguments& arguments);
};

std::span<const Filter> text_filters();
std::span<const Filter> list_filters();
std::span<const Filter> choice_filters();  // map, select and their relatives

// Returns the filter, or nullptr.
const Filter* find_filter(std::string_view name);
// Returns a message that names the filter and a similar one.
std::string unknown_filter(const std::string& name);

// Returns the item's attribute "a.b.0", a number, or the item itself for none; texts in lower case
// unless `cased`.
Value key_of(Run& run, const Value& item, const Value* attribute, bool cased = true);

}  // namespace perigee::text::jinja
