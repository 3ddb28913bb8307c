#include "train/ranks/shared_settings.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <system_error>

namespace perigee::train {

exec::Settings shared_settings(const job::Job& job) {
  auto settings = job::shared_keys(job);
  if (job.data.slice_files) return settings;  // a host may have some of the files
  // Hosts may have copies of the data in different folders, so the files' sizes are compared, too.
  uintmax_t bytes = 0;
  for (const auto& file : job.data.files) {
    std::error_code unreadable;  // an error where the data are opened
    const auto size = std::filesystem::file_size(file, unreadable);
    if (!unreadable) bytes += size;
  }
  settings.emplace_back("the size of the data's files", fmt::format("{} bytes", bytes));
  return settings;
}

}  // namespace perigee::train
