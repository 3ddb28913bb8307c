#include "host.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "base/fail.h"

namespace perigee::command {

train::Host& torch_host() {
  static train::Host* host = [] {
    // Where a rank dies or does not connect, c10d's store would print pages of stack frames next to
    // our one message.
    ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
    void* library = ::dlopen("libperigee_torch.so", RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
      const std::string why = ::dlerror();
      // The loader's words for mmap() without memory.
      if (why.find("failed to map segment") != std::string::npos) {
        fail_run("memory",
                 "the process is out of memory: raise its limit (ulimit -v); LibTorch must be "
                 "loaded, but got: {}",
                 why);
      }
      fail_run("command", "this needs libperigee_torch and LibTorch, but: {}", why);
    }
    auto* make = reinterpret_cast<train::Host* (*)()>(::dlsym(library, "perigee_host"));
    if (!make)
      fail_run("command", "libperigee_torch must be of this version, but: {}", ::dlerror());
    return make();
  }();
  return *host;
}

}  // namespace perigee::command
