#include "tests/cuda/support.h"

namespace perigee::exec {

std::vector<NamedDevice> devices() {
  std::vector<NamedDevice> all = {{"the CPU", cpu_device()}};
  const auto gpus = cuda_host().gpus();
  if (gpus.found.empty()) {
    static const bool said = [&] {
      WARN("no GPU, so its kernels were not run: " << gpus.why_none);
      return true;
    }();
    static_cast<void>(said);
  } else {
    all.push_back({"GPU 0", cuda_host().device({})});
    all.push_back({"GPU 0, deterministic", cuda_host().device({.deterministic = true})});
  }
  return all;
}

}  // namespace perigee::exec
