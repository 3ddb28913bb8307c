// Numbers of bytes as text.
#pragma once

#include <string>

namespace perigee {

// Returns the bytes with three digits in the largest binary unit below 1000 of it: "512 B",
// "12.3 GiB", "75 TiB".
std::string bytes_text(double bytes);

}  // namespace perigee
