// Whole files.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

// Returns the file's bytes. Throws Error (Status::invalid) of that area with the system's reason.
std::string read_file(const std::string& path, std::string_view area);

// Returns whether this process finds anything but a folder at the path: also a device or a pipe.
bool is_file(const std::string& path);

}  // namespace perigee
