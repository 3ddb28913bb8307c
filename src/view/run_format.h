// The format of a run's folder (runtime/runs.md), which its memory.json states.
#pragma once

#include <string>
#include <string_view>

namespace perigee::view {

// The number grows when a reader of the former format would misread a file of the folder.
inline constexpr std::string_view kRunFormat = "perigee.run/1";

// Throws Error for the folder of a run in another format. A folder whose memory.json is not there,
// is damaged or states no format is read as this one.
void require_run_format(const std::string& folder);

}  // namespace perigee::view
