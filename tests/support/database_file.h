// A database's file for a test.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace perigee {

// A path in the temporary folder that is this process's own. The file is removed at the end, with
// what SQLite puts beside it: declare it before what opens it.
struct DatabaseFile {
  std::string path;

  explicit DatabaseFile(const std::string& name)
      : path((std::filesystem::temp_directory_path() /
              ("perigee-" + name + "-" + std::to_string(::getpid()) + ".sqlite"))
                 .string()) {
    remove();
  }
  ~DatabaseFile() { remove(); }
  DatabaseFile(const DatabaseFile&) = delete;
  DatabaseFile& operator=(const DatabaseFile&) = delete;

 private:
  void remove() const {
    for (const char* more : {"", "-wal", "-shm"}) std::filesystem::remove(path + more);
  }
};

}  // namespace perigee
