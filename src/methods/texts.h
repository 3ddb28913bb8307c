// Lists of names, and sizes, in a method's config.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "methods/method.h"

namespace perigee::methods {

// Returns the axes that a field names: a name, several with commas between them, or a list, each
// axis once; `otherwise` where it is not given. Throws Error as `texts` does, and for an axis that
// stands twice.
std::vector<std::string> axes_of(const Config& config, std::string_view method, const char* field,
                                 std::vector<std::string> otherwise);

// Returns a name, or each of a list of names. Throws Error for anything else: "[METHOD] WHAT are
// names, but got ...".
std::vector<std::string> texts(const Json& value, std::string_view method, std::string_view what);

// Returns the bytes that a rank may use: a number, a text with a unit ("40GB", "512 MiB"), or
// "device": what the devices have, 0 where nobody knows that. Throws Error for anything else.
int64_t memory_of(const Json& value, const plan::Plan& plan, const Request& request,
                  std::string_view method);

}  // namespace perigee::methods
