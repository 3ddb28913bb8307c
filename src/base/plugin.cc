#include "base/plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/fail.h"

namespace perigee {

void* open_plugin(std::string_view area, std::string_view user, const std::string& name,
                  const char* function, int more_flags) {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&open_plugin), &self) == 0 || !self.dli_fname) {
    fail_run(area, "the folder of libperigee_core.so must be known to find plugins beside it");
  }
  const auto path = std::filesystem::path(self.dli_fname).parent_path() / ("lib" + name + ".so");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | more_flags);
  void* found = library ? dlsym(library, function) : nullptr;
  if (!found) {
    fail_run(area, "{} needs {}, but it does not load: {}", user, path.string(), dlerror());
  }
  return found;
}

}  // namespace perigee
