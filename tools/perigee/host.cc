#include "host.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/fail.h"
#include "base/version.h"

namespace perigee::command {

namespace {

// Returns how to get the LibTorch that this command is built for.
std::string remedy() {
  std::error_code ignored;
  const auto bin = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const auto has = [&](const char* file) { return std::filesystem::exists(bin / file, ignored); };
  const std::string_view version = PERIGEE_TORCH_VERSION;
  const auto install = has("../bin/perigee-libtorch")
                           ? std::string("perigee-libtorch links or fetches it")
                       : has("../__init__.py")  // the package of the wheel
                           ? fmt::format("pip install \"torch=={}.*\" installs it",
                                         version.substr(0, version.rfind('.')))
                           : "scripts/setup of the source tree links or fetches it";
  return install + ", or set PERIGEE_TORCH to its folder";
}

// Loads the LibTorch in `folder`; libraries that need LibTorch then take this one.
void load_torch(const std::string& folder) {
  for (const char* inside : {"lib", "torch/lib"}) {
    const auto file = std::filesystem::path(folder) / inside / "libtorch_cpu.so";
    std::error_code ignored;
    if (!std::filesystem::exists(file, ignored)) continue;
    if (::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL)) return;
    fail_run("command", "the LibTorch of PERIGEE_TORCH must be loaded, but: {}", ::dlerror());
  }
  fail("command",
       "PERIGEE_TORCH must be a folder with lib/libtorch_cpu.so or torch/lib/libtorch_cpu.so, but "
       "got \"{}\"",
       folder);
}

void require_version(void* library) {
  auto* version = reinterpret_cast<const char* (*)()>(::dlsym(library, "perigee_host_version"));
  if (!version || version() != kVersion) {
    Dl_info file{};
    const bool known = version && ::dladdr(reinterpret_cast<void*>(version), &file) != 0;
    fail_run("command", "{} must be of version {}, as the command is, but is of {}",
             known ? file.dli_fname : "libperigee_torch.so", kVersion,
             version ? version() : "an earlier one");
  }
  // LibTorch's C interface: major version, minor version and patch in the highest three bytes.
  auto* abi = reinterpret_cast<uint64_t (*)()>(::dlsym(library, "aoti_torch_abi_version"));
  const auto found = abi ? fmt::format("{}.{}", abi() >> 56, abi() >> 48 & 0xff) : "an unknown one";
  if (!std::string_view(PERIGEE_TORCH_VERSION).starts_with(found + ".")) {
    fail_run("command", "LibTorch must be {}, for which this Perigee was built, but is {}; {}",
             PERIGEE_TORCH_VERSION, found, remedy());
  }
}

void* load_library() {
  if (const char* folder = std::getenv("PERIGEE_TORCH"); folder && *folder) load_torch(folder);
  // A thread that waits for others of its group spins at first, by default for milliseconds, which
  // keeps a core from them where a host has fewer free cores than threads. GNU OpenMP reads the
  // number of rounds when it is loaded.
  if (!std::getenv("OMP_WAIT_POLICY")) ::setenv("GOMP_SPINCOUNT", "20000", /*overwrite=*/0);
  void* library = ::dlopen("libperigee_torch.so", RTLD_LAZY | RTLD_LOCAL);
  if (library) return library;
  const std::string why = ::dlerror();
  // The loader's words for mmap() without memory.
  if (why.find("failed to map segment") != std::string::npos) {
    fail_run("memory",
             "the process is out of memory: raise its limit (ulimit -v); LibTorch must be loaded, "
             "but got: {}",
             why);
  }
  fail_run("command", "LibTorch {} must be loaded, but: {}; {}", PERIGEE_TORCH_VERSION, why,
           remedy());
}

}  // namespace

train::Host& torch_host() {
  static train::Host* host = [] {
    // Where a rank dies or does not connect, c10d's store would print pages of stack frames next to
    // our one message.
    ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
    void* library = load_library();
    require_version(library);
    return reinterpret_cast<train::Host* (*)()>(::dlsym(library, "perigee_host"))();
  }();
  return *host;
}

}  // namespace perigee::command
