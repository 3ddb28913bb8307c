#include "checkpoint/weights/new_folder.h"

#include <filesystem>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"

namespace perigee::checkpoint {
namespace fs = std::filesystem;

void write_new_folder(const std::string& folder, std::string_view option,
                      const std::function<void(const std::string& path)>& write) {
  auto to = fs::absolute(folder).lexically_normal();
  if (!to.has_filename()) to = to.parent_path();  // "folder/"
  std::error_code ignored;
  if (fs::exists(to, ignored) && !(fs::is_directory(to, ignored) && fs::is_empty(to, ignored))) {
    fail("export", "{} names a new or empty folder, but {} is there", option, folder);
  }
  const auto path = to.string(), partial = path + ".partial";
  fs::remove_all(partial, ignored);
  make_folders(partial);
  try {
    write(partial);
    fs::remove(to, ignored);  // empty
    rename_durably(partial, path);
  } catch (...) {
    fs::remove_all(partial, ignored);
    throw;
  }
}

}  // namespace perigee::checkpoint
