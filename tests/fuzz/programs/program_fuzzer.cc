// The entry of libFuzzer (scripts/fuzz): feeds its inputs to the one target of the program.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace perigee::fuzz;
  static const Target target = targets().begin()->second;
  feed(target, {reinterpret_cast<const char*>(data), size});
  return 0;
}
