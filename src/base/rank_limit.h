// The limit of a job's ranks: of its meshes, keys and options.
#pragma once

#include <cstdint>

namespace perigee {

inline constexpr int64_t kMostRanks = int64_t{1} << 20;

}  // namespace perigee
