// The version of the project; the build reads it from here.
#pragma once

#include <string_view>

namespace perigee {

inline constexpr std::string_view kVersion = "0.2.0";

}  // namespace perigee
