// Gives each test process, and the commands that it runs, a cache folder of its own: the planner's
// choices depend on measured times in the cache. Ranks compute with one thread unless a job says
// otherwise: the numbers of several depend on the machine, and several tests run at once.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace {

class OwnCache {
 public:
  OwnCache() {
    auto folder = (std::filesystem::temp_directory_path() / "perigee-tests-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) return;
    folder_ = folder;
    ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
    ::setenv("OMP_NUM_THREADS", "1", 0);
  }
  ~OwnCache() {
    if (folder_.empty() || ::getpid() != owner_) return;  // the parent of a forked test removes it
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  OwnCache(const OwnCache&) = delete;
  OwnCache& operator=(const OwnCache&) = delete;

 private:
  const pid_t owner_ = ::getpid();
  std::filesystem::path folder_;
};

const OwnCache own_cache;

}  // namespace
