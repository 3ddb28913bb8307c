// The folder of files that can be recomputed.
#pragma once

#include <string>

namespace perigee {

// Returns $XDG_CACHE_HOME/perigee, else $HOME/.cache/perigee, else "": nothing is cached, since
// others could write to a folder whose name they can predict. It need not exist.
std::string cache_folder();

}  // namespace perigee
