// The functions that every template has.
#pragma once

#include <map>
#include <string>

#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

// range, dict, namespace, raise_exception, strftime_now.
std::map<std::string, Value, std::less<>> functions();

}  // namespace perigee::text::jinja
