#include <dlfcn.h>

#include <optional>

#include "base/fail.h"
#include "base/version.h"
#include "capture/capture.h"
#include "capture/plugin_version.h"

namespace perigee {
namespace {

thread_local std::optional<std::string> plugin_error;

}  // namespace

namespace tracing {

void report_plugin_error(const std::string& message) {
  plugin_error = message.empty() ? "an error without a text" : message;
}

}  // namespace tracing

Model load_plugin(const std::string& path, const std::string& config) {
  // Without a slash the loader would search the system's folders.
  const auto file = path.find('/') == std::string::npos ? "./" + path : path;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) fail("capture", "\"{}\" must be a model plugin, but: {}", path, dlerror());
  using Make = void (*)(const char*, Model*);
  const auto make = reinterpret_cast<Make>(dlsym(library, "perigee_model"));
  if (!make) {
    fail("capture",
         "a plugin exports perigee_model (PERIGEE_MODEL in capture/capture.h), but "
         "\"{}\" does not",
         path);
  }
  if (!has_plugin_versions(library, path)) {
    fail("plugin",
         "\"{}\" must be built with Perigee {}, but was built with an earlier one: build it again",
         path, kVersion);
  }
  plugin_error.reset();
  Model model;
  make(config.c_str(), &model);
  if (plugin_error) fail("capture", "\"{}\" made no model: {}", path, *plugin_error);
  if (!model.module || !model.forward) {
    fail("capture", "a plugin gives a module and a forward function, but \"{}\" gave {}", path,
         model.module ? "no forward function" : "no module");
  }
  return model;
}

}  // namespace perigee
