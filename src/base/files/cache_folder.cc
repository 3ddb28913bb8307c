#include "base/files/cache_folder.h"

#include <cstdlib>

namespace perigee {

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache && *cache) return std::string(cache) + "/perigee";
  return home && *home ? std::string(home) + "/.cache/perigee" : "";
}

}  // namespace perigee
