// Lists of names in a method's config.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "methods/method.h"

namespace perigee::methods {

// Returns a name, or each of a list of names. Throws Error for anything else: "[METHOD] WHAT are
// names, but got ...".
std::vector<std::string> texts(const Json& value, std::string_view method, std::string_view what);

}  // namespace perigee::methods
