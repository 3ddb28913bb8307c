// File name patterns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee {

// Returns the files that match a shell pattern (* ? [...]), sorted by bytes; folders are left out.
// A name without such characters is itself where it exists.
std::vector<std::string> glob_files(const std::string& pattern);

// Returns the pattern that matches this path alone.
std::string pattern_of(std::string_view path);

}  // namespace perigee
