// Where Perigee keeps what it can make again.
#pragma once

#include <string>

namespace perigee {

// Returns $XDG_CACHE_HOME/perigee, else ~/.cache/perigee, else /tmp/perigee. It need not exist.
std::string cache_folder();

}  // namespace perigee
