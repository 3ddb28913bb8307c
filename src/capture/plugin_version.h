// The versions of Perigee and LibTorch that a plugin is built with (PERIGEE_PLUGIN_VERSIONS).
#pragma once

#include <string>

namespace perigee {

// Returns whether the library, which dlopen opened, exports the versions that it is built with.
// Throws Error where they are not this version of Perigee and this minor version of LibTorch: C++
// objects have other layouts then.
bool has_plugin_versions(void* library, const std::string& path);

}  // namespace perigee
