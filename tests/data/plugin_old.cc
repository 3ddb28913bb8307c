// A plugin as another version of Perigee or LibTorch built it; its model and sampler read nothing.
#include <cstdint>

#include "base/version.h"

#ifdef OTHER_perigee
extern "C" const char* perigee_plugin_version() { return "0.0.9"; }
extern "C" const char* perigee_plugin_torch_version() { return "2.11.0"; }
#elif defined(OTHER_torch)
extern "C" const char* perigee_plugin_version() { return perigee::kVersion.data(); }
extern "C" const char* perigee_plugin_torch_version() { return "1.13.1"; }
#endif

extern "C" void perigee_model(const char*, void*) {}
extern "C" int64_t perigee_sampler(int64_t sample, int64_t count, uint64_t) {
  return sample % count;
}
