#include "exec/cuda.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <unistd.h>

#include <string>

#include "base/fail.h"

namespace perigee::exec {
namespace {

// Returns the folder of this library, with a slash at its end.
std::string own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&gpu_driver_present), &info) || !info.dli_fname) {
    fail_run("cuda", "the loader must say where Perigee's library lies, but does not");
  }
  const std::string file = info.dli_fname;
  const auto slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash + 1);
}

std::string plugin_file() { return own_folder() + "libperigee_cuda.so"; }

CudaHost& open_host() {
  const auto file = plugin_file();
  if (!cuda_part_present()) {
    fail("cuda",
         "device = \"cuda\" needs Perigee's CUDA part ({}), but it was not built: build Perigee "
         "from its source where a CUDA 13 toolkit is installed, or use device = \"cpu\"",
         file);
  }
  // Never closed: kernels and threads of LibTorch's CUDA libraries live as long as the process.
  void* plugin = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!plugin) fail_run("cuda", "{} must load, but got: {}", file, dlerror());
  auto* entry = reinterpret_cast<CudaHost* (*)()>(dlsym(plugin, "perigee_cuda_host"));
  if (!entry) fail_run("cuda", "{} must export perigee_cuda_host, but does not", file);
  auto& host = *entry();
  if (!host.gpus().found.empty() && !at::globalContext().hasCUDA()) {
    fail_run("cuda",
             "the CUDA part must be loaded before LibTorch is asked for CUDA, but came after; call "
             "perigee::exec::cuda_host() first");
  }
  return host;
}

}  // namespace

bool gpu_driver_present() {
  // Linux; the Windows Subsystem for Linux.
  return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

bool cuda_part_present() { return access(plugin_file().c_str(), R_OK) == 0; }

CudaHost& cuda_host() {
  static CudaHost& host = open_host();
  return host;
}

}  // namespace perigee::exec
