// Plugins: libraries of Perigee that are opened when they are first needed.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

// Opens lib`name`.so, which lies beside libperigee_core.so, and returns its function. The library
// stays loaded. `more_flags`: of dlopen, besides RTLD_NOW and RTLD_LOCAL. Throws Error (failed) of
// that area where it does not load or lacks the function: "`user` needs ...".
void* open_plugin(std::string_view area, std::string_view user, const std::string& name,
                  const char* function, int more_flags = 0);

}  // namespace perigee
