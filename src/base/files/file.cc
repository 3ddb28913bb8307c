#include "base/files/file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/fail.h"

namespace perigee {

std::string read_file(const std::string& path, std::string_view area) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  std::string text;
  char buffer[1 << 16];
  while (file) {
    const size_t n = std::fread(buffer, 1, sizeof buffer, file.get());
    text.append(buffer, n);
    if (n == sizeof buffer) continue;
    if (std::ferror(file.get())) break;
    return text;
  }
  fail(area, "cannot read \"{}\": {}", path, std::strerror(errno));
}

bool is_file(const std::string& path) {
  std::error_code none;
  const auto found = std::filesystem::status(path, none);
  return exists(found) && !is_directory(found);
}

}  // namespace perigee
