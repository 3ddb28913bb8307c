#include "view/watch_server.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/fail.h"

namespace perigee::view {

std::unique_ptr<WatchServer> open_watch_server(const WatchOptions& options) {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&open_watch_server), &self) == 0 || !self.dli_fname) {
    fail_run("watch", "the folder of libperigee_core.so must be known to find plugins beside it");
  }
  const auto path = std::filesystem::path(self.dli_fname).parent_path() / "libperigee_watch.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded
  void* symbol = library ? dlsym(library, "perigee_watch_open") : nullptr;
  if (!symbol) {
    fail_run("watch", "perigee watch needs {}, but it does not load: {}", path.string(), dlerror());
  }
  std::unique_ptr<WatchServer> server;
  reinterpret_cast<OpenWatchServer>(symbol)(options, server);
  return server;
}

}  // namespace perigee::view
