// A number that is computed in a process of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace perigee::command {

// Runs `compute` in a forked process whose output is discarded, and returns its result; nothing
// where it throws or the process ends in another way. For work after which a process can fork no
// ranks. The process ends with this one. Throws Error when the system starts no process.
std::optional<int64_t> forked_number(const std::function<int64_t()>& compute);

}  // namespace perigee::command
