#include "capture/plugin_version.h"

#include <dlfcn.h>
#include <torch/headeronly/version.h>

#include "base/fail.h"
#include "base/version.h"

namespace perigee {

bool has_plugin_versions(void* library, const std::string& path) {
  using Version = const char* (*)();
  const auto perigee = reinterpret_cast<Version>(dlsym(library, "perigee_plugin_version"));
  const auto torch = reinterpret_cast<Version>(dlsym(library, "perigee_plugin_torch_version"));
  if (!perigee || !torch) return false;
  const auto minor = fmt::format("{}.{}", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);
  if (perigee() == kVersion && std::string_view(torch()).starts_with(minor + ".")) return true;
  fail("plugin",
       "\"{}\" must be built with Perigee {} and LibTorch {}, but was built with Perigee {} and "
       "LibTorch {}: build it again",
       path, kVersion, minor, perigee(), torch());
}

}  // namespace perigee
