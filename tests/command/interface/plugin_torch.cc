// In place of libperigee_torch: this version's, with a LibTorch that the command is not built for.
#include <cstdint>

#include "src/base/version.h"

extern "C" const char* perigee_host_version() { return perigee::kVersion.data(); }
extern "C" uint64_t aoti_torch_abi_version() { return uint64_t{2} << 56 | uint64_t{5} << 48; }
