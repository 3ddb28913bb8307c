// Measurements of this machine in one SQLite file: entries by kind ("trace", "time", "collective"),
// device and content. Several threads and processes may use one file at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace perigee::profile {

class Database {
 public:
  // Opens the file; creates it and its folder where they are missing. Replaces a file that is
  // damaged or of another version, with one warning. Throws Error where it can neither be
  // opened nor created.
  explicit Database(const std::string& path);
  ~Database();
  Database(Database&&) noexcept;

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

  // Adds or replaces an entry. Where the disk is full, warns once and drops it: a profile is
  // only a cache.
  void put(const Key& key, const std::string& value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::profile
