// Whole files.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

// Returns the file's bytes. Throws Error (Status::invalid) of that area with the system's reason.
std::string read_file(const std::string& path, std::string_view area);

}  // namespace perigee
