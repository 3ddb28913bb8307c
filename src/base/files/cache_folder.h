// The folder of files that can be recomputed.
#pragma once

#include <string>

namespace perigee {

// Returns $XDG_CACHE_HOME/perigee, else ~/.cache/perigee, else /tmp/perigee. It need not exist.
std::string cache_folder();

}  // namespace perigee
