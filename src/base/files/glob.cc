#include "base/files/glob.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

namespace perigee {

std::vector<std::string> glob_files(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      std::error_code ignored;
      if (!std::filesystem::is_directory(found.gl_pathv[i], ignored)) {
        files.emplace_back(found.gl_pathv[i]);
      }
    }
  }
  globfree(&found);
  std::ranges::sort(files);
  return files;
}

std::string pattern_of(std::string_view path) {
  std::string pattern;
  for (const char c : path) {
    if (std::string_view("*?[\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace perigee
