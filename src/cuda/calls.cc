#include "cuda/calls.h"

namespace perigee::cuda {

const Calls& calls() {
  static const Calls libraries = [] {
    Calls table;
    table.cudaHostAlloc = &::cudaHostAlloc;
    table.cudaMalloc = &::cudaMalloc;
#define PERIGEE_CALL(name) table.name = &::name;
    PERIGEE_CALLS(PERIGEE_CALL)
#undef PERIGEE_CALL
    return table;
  }();
  return libraries;
}

}  // namespace perigee::cuda
