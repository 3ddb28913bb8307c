// The file of a test's database.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace perigee {

// A path of this process in the temporary folder. The destructor removes the file and SQLite's
// other files: declare it before the database.
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
