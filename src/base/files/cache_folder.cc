#include "base/files/cache_folder.h"

#include <cstdlib>
#include <filesystem>

namespace perigee {

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path folder = cache && *cache ? cache
                                       : home && *home ? std::string(home) + "/.cache"
                                                       : "/tmp";
  return (folder / "perigee").string();
}

}  // namespace perigee
