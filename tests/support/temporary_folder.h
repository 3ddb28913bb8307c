// A folder of files for one test.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"

namespace perigee::test {

class Folder {
 public:
  explicit Folder(const std::filesystem::path& base = std::filesystem::temp_directory_path()) {
    static int made = 0;
    path_ = base / fmt::format("perigee-train-{}-{}", getpid(), made++);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_.string(); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  // Writes a file and returns its path.
  std::string add(const std::string& name, std::string_view bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return at(name);
  }

 private:
  std::filesystem::path path_;
};

// Returns the message of the Error that `f` throws, or "nothing was thrown".
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace perigee::test
