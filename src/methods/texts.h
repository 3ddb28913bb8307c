// Lists of strings, and sizes in bytes, in a method's config.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "methods/method.h"

namespace perigee::methods {

// Returns a string, or each of a list of strings. Throws Error for anything else: "[METHOD] WHAT
// are names, but got ...".
std::vector<std::string> texts(const Json& value, std::string_view method, std::string_view what);

// Returns the bytes that a rank may use: a number, a text with a unit ("40GB", "512
// MiB"), or "device": the memory of the plan's devices, 0 where that is unknown. Throws
// Error for anything else.
int64_t memory_of(const Json& value, const plan::Plan& plan, const PlanRequest& request,
                  std::string_view method);

}  // namespace perigee::methods
