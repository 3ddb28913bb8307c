// Measurements of this machine in one SQLite file: entries by kind ("trace", "time", "collective"),
// device and content. Several threads and processes may use one file at a time. The file is a
// cache: without it, work goes on with entries in memory.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace perigee::profile {

struct DatabaseOptions {
  std::chrono::milliseconds busy{5000};  // how long a call waits for other processes' locks
  bool tells = true;                     // one line where entries are in memory only
};

class Database {
 public:
  // Opens the file; creates it and its folder where they are missing. One of another version stays
  // as it is, and this version's entries are in a file beside it (NAME.v1.sqlite). A damaged file
  // is emptied after it was copied to PATH.damaged. Where the file cannot be opened, written or
  // locked, now or later, its entries that can be read and all new ones are in memory. Each of
  // these is said in one line. `path`: "" where there is no folder for it.
  explicit Database(const std::string& path, const DatabaseOptions& options = {});
  ~Database();
  Database(Database&&) noexcept;

  // Returns the file that is used.
  const std::string& path() const;
  // Throws Error (invalid) where entries are in memory only, for work that exists to keep them.
  void require_file() const;

  struct Key {
    std::string kind;
    std::string device;   // device_kind()
    std::string content;  // the measured op, collective or trace
  };

  std::optional<std::string> find(const Key& key);

  // Returns every entry with its value, sorted by kind, device and content.
  std::vector<std::pair<Key, std::string>> all();

  // Returns the devices of all entries of a kind, ascending.
  std::vector<std::string> devices(const std::string& kind);

  // Adds or replaces an entry.
  void put(const Key& key, const std::string& value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::profile
