// The secret of a job over several hosts.
#pragma once

#include <string>

namespace perigee::command {

// Returns the content of `file` without the line's end, else the environment's PERIGEE_SECRET, else
// "". Throws Error where the file holds nothing.
std::string given_secret(const std::string& file);

}  // namespace perigee::command
