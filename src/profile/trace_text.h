// Allocation traces as JSON, as the profile database and its exports hold them.
#pragma once

#include <optional>
#include <string>

#include "compile/trace.h"

namespace perigee::profile {

// Returns the JSON text of a trace; "null" where there is none.
std::string print(const std::optional<compile::OpTrace>& trace);

// Returns the trace, or nothing for text that is not one: bytes are at least 0, and numbers of
// allocations are those of the trace's own.
std::optional<std::optional<compile::OpTrace>> parse_trace(const std::string& text);

// Returns whether the trace has an allocation and strides for each result of the instance.
bool describes(const compile::OpTrace& trace, const compile::OpInstance& instance);

}  // namespace perigee::profile
