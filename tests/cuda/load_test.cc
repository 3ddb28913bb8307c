#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "tests/support/torch_test.h"

TEST_CASE("the CUDA plugin loads on any machine and brings LibTorch's CUDA kernels") {
  const char* build = std::getenv("PERIGEE_BUILD");
  REQUIRE(build);
  const auto mm = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  CHECK_FALSE(mm.hasKernelForDispatchKey(c10::DispatchKey::CUDA));
  void* plugin =
      dlopen((std::string(build) + "/libperigee_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  INFO((plugin ? "" : dlerror()));
  REQUIRE(plugin);
  CHECK(mm.hasKernelForDispatchKey(c10::DispatchKey::CUDA));
}
