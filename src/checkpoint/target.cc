#include "checkpoint/target.h"

#include <filesystem>

#include "base/plugin.h"

namespace perigee::checkpoint {
namespace {

constexpr std::string_view kS3 = "s3://";

}  // namespace

bool is_s3(std::string_view path) { return path.starts_with(kS3); }

std::unique_ptr<Target> open_target(const std::string& path, std::function<void()> waiting) {
  if (!is_s3(path)) return folder_target();
  static const auto open = reinterpret_cast<OpenS3>(
      open_plugin("s3", "a checkpoint in S3", "perigee_s3", "perigee_s3_open"));
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
