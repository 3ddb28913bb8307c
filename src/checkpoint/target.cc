#include "checkpoint/target.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/fail.h"

namespace perigee::checkpoint {
namespace {

constexpr std::string_view kS3 = "s3://";

// Opens the plugin from the folder of the library that holds this function, once per process.
OpenS3 load_s3() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&load_s3), &self) == 0 || !self.dli_fname) {
    fail_run("s3", "the folder of libperigee_torch.so must be known to find plugins beside it");
  }
  const auto path = std::filesystem::path(self.dli_fname).parent_path() / "libperigee_s3.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = library ? dlsym(library, "perigee_s3_open") : nullptr;
  if (!symbol) {
    fail_run("s3", "checkpoints in S3 need {}, but it does not load: {}", path.string(), dlerror());
  }
  return reinterpret_cast<OpenS3>(symbol);
}

}  // namespace

bool is_s3(std::string_view path) { return path.starts_with(kS3); }

std::unique_ptr<Target> open_target(const std::string& path, std::function<void()> waiting) {
  if (!is_s3(path)) return folder_target();
  static const OpenS3 open = load_s3();
  std::unique_ptr<Target> target;
  open(std::move(waiting), target);
  return target;
}

std::string inside(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

bool is_same_folder(const std::string& a, const std::string& b) {
  if (is_s3(a) || is_s3(b)) return a == b;
  std::error_code ignored;
  return std::filesystem::equivalent(a, b, ignored);
}

std::string read_text(const std::string& path) { return open_target(path)->read_all(path); }

}  // namespace perigee::checkpoint
