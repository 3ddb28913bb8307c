#include "cuda/calls.h"

#include <dlfcn.h>

namespace perigee::cuda {

const Calls& calls() {
  static const Calls libraries = [] {
    Calls table;
    table.cudaHostAlloc = &::cudaHostAlloc;
    table.cudaMalloc = &::cudaMalloc;
#define PERIGEE_CALL(name) table.name = &::name;
    PERIGEE_CALLS(PERIGEE_CALL)
#undef PERIGEE_CALL
// A reference that the linker resolves, even a weak one, keeps the plugin from loading without it.
#define PERIGEE_CALL(name) \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(RTLD_DEFAULT, #name));
    PERIGEE_NEWER_CALLS(PERIGEE_CALL)
#undef PERIGEE_CALL
    return table;
  }();
  return libraries;
}

}  // namespace perigee::cuda
