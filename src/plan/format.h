// The name and version of a plan's file.
#pragma once

namespace perigee::plan {

inline constexpr const char* kFormat = "perigee.plan/1";

}  // namespace perigee::plan
