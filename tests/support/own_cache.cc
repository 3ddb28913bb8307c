// Gives each process of tests a cache folder of its own, and with it the commands that it runs:
// what other runs have measured decides what the planner chooses.
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
  }
  ~OwnCache() {
    if (folder_.empty() || ::getpid() != owner_) return;  // a forked test leaves it to its parent
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
