// Tests: "value is name(arguments)".
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/run.h"
#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

struct Test {
  std::string_view name;
  bool (*holds)(Run& run, const Value& value, const Arguments& arguments);
};

// Returns the test, or nullptr.
const Test* find_test(std::string_view name);
// Returns a message that names the test and a similar one.
std::string unknown_test(const std::string& name);

}  // namespace perigee::text::jinja
