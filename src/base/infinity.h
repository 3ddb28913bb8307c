#pragma once
#include <limits>

namespace perigee {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace perigee
