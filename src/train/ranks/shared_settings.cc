#include "train/ranks/shared_settings.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "data/files_record.h"

namespace perigee::train {
namespace {

namespace fs = std::filesystem;

// Returns a hash of the files; "" where one cannot be read, which is an error where it is opened.
std::string hash_of(const std::vector<std::string>& files) {
  try {
    return data::sample_hash(files);
  } catch (const Error&) {
    return "";
  }
}

// Returns "NAME (hash HASH)".
std::string with_hash(const std::string& file) {
  return fmt::format("{} (hash {})", fs::path(file).filename().string(), hash_of({file}));
}

}  // namespace

exec::Settings shared_settings(const job::Job& job) {
  auto settings = job::shared_keys(job);
  if (job.data.slice_files) return settings;  // a host may have some of the files
  // Hosts may have copies of the data in different folders, so the files are compared, too.
  uintmax_t bytes = 0;
  for (const auto& file : job.data.files) {
    std::error_code unreadable;
    const auto size = fs::file_size(file, unreadable);
    if (!unreadable) bytes += size;
  }
  settings.emplace_back("the size of the data's files", fmt::format("{} bytes", bytes));
  if (!job.data.files.empty()) {
    settings.emplace_back("the hash of parts of the data's files", hash_of(job.data.files));
  }
  return settings;
}

exec::Settings task_settings(const Task& task) {
  exec::Settings settings;
  if (!task.plan_file.empty()) {
    settings.emplace_back("--plan", with_hash(task.plan_file));
  } else {
    settings.emplace_back(
        "the strategy", task.strategy.ends_with(".lua") ? with_hash(task.strategy) : task.strategy);
  }
  if (task.restarts) return settings;
  settings.emplace_back("--resume", task.resume ? "given" : "not given");
  settings.emplace_back("--overwrite", task.overwrite ? "given" : "not given");
  return settings;
}

}  // namespace perigee::train
